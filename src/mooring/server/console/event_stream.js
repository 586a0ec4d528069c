// The event stream of the server. It reports its connection state, so that a page can show whether it
// is live.

const LONGEST = 15000;

export class Live {
  #source = null;
  #retry = 1000;
  #timer = 0;
  #state = "connecting";
  #changed;
  #onState;
  #service = null;

  /** `changed(kind, data)` is called for each event, `onState(state)` when the connection state changes. */
  constructor(changed, onState) {
    this.#changed = changed;
    this.#onState = onState;
  }

  get state() {
    return this.#state;
  }

  /** Open the stream. With `service`, it includes events of its instances. */
  open(service = this.#service ?? "") {
    if (
      this.#source !== null &&
      service === this.#service &&
      this.#source.readyState !== EventSource.CLOSED
    )
      return;
    this.close();
    this.#service = service;
    const query = service ? `?service=${encodeURIComponent(service)}` : "";
    const source = new EventSource(`/admin/events${query}`);
    this.#source = source;
    source.onopen = () => {
      this.#retry = 1000;
      this.#say("live");
    };
    source.onerror = () => {
      if (source !== this.#source) return;
      // After some errors, such as a 503 during a restart, EventSource does not reconnect.
      this.#say("broken");
      if (source.readyState === EventSource.CLOSED) this.#again();
    };
    for (const kind of KINDS)
      source.addEventListener(kind, (event) => this.#changed(kind, read(event)));
  }

  close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #again() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.open(), this.#retry * (0.75 + Math.random() / 2));
    this.#retry = Math.min(this.#retry * 2, LONGEST);
  }

  #say(state) {
    if (state === this.#state) return;
    this.#state = state;
    this.#onState(state);
  }
}

const KINDS = ["hello", "reset", "services", "instances", "health", "problems"];

function read(event) {
  try {
    return JSON.parse(event.data);
  } catch {
    return null;
  }
}
