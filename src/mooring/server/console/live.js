// The stream of changes. Whether it flows is told to who asks: a page that stands still must say so.

const LONGEST = 15000;

export class Live {
  #source = null;
  #retry = 1000;
  #timer = 0;
  #state = "connecting";
  #changed;
  #told;
  #service = null;

  /** `changed(kind, data)` for each event; `told(state)` when it connects, flows or breaks. */
  constructor(changed, told) {
    this.#changed = changed;
    this.#told = told;
  }

  get state() {
    return this.#state;
  }

  /** With `service`, its instances are told of too. */
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
      // Some errors end a source for good (a restart's 503): then it is for us to try again.
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
    this.#told(state);
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
