"""Store URLs: every part is validated, and no password is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooring.backends import open_store
from mooring.errors import InvalidURL
from mooring.hub import connect
from mooring.store.url import StoreURL, parse


def test_the_parts_of_an_etcd_url():
    url = parse("etcds://app:p%40ss@h1,h2:1234,[::1]?ca=/ca.pem&timeout=2s&namespace=/x")
    assert url.hosts(2379) == ("h1:2379", "h2:1234", "[::1]:2379")
    assert (url.user, url.password) == ("app", "p@ss")
    assert url.path("ca") == Path("/ca.pem")
    assert url.path("cert") is None


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sqlite:///a/store", "/a/store"),
        ("sqlite:///mia@home/store", "/mia@home/store"),
        ("sqlite:///a:b@c/d", "/a:b@c/d"),
        ("sqlite:///a%20b/%E6%9C%8D", "/a b/服"),
        ("sqlite:///服 务/x+y", "/服 务/x+y"),
        ("sqlite:///what%3F/%23%25", "/what?/#%"),
        ("sqlite:///100%/x", "/100%/x"),
        ("sqlite:///%FF", "/\udcff"),
        ("sqlite://relative/store/", "relative/store"),
    ],
)
def test_the_path_of_a_file(text: str, path: str):
    url = parse(text)
    assert url.file == Path(path)
    assert (url.user, url.password) == ("", "")
    assert parse(str(url)).file == Path(path)
    assert str(url).isprintable()


def test_a_path_of_any_character_can_be_a_store():
    path = "/tmp/" + "".join(map(chr, range(1, 300))).replace("/", "") + "\udc80"
    url = StoreURL("sqlite", path)
    assert url.file == Path(path)
    assert parse(str(url)) == url


def test_a_file_in_a_home_folder():
    assert parse("sqlite://~/store").file == Path.home() / "store"
    with pytest.raises(InvalidURL, match="home"):
        print(parse("sqlite://~nobody-of-this-name/store").file)


def test_a_memory_store_has_the_complete_name():
    assert parse("memory://a@b").location == "a@b"


def test_the_size_of_the_history_is_an_option():
    assert parse("memory://?history_bytes=1000").option("history_bytes", 5) == 1000
    assert parse("sqlite:///x?history_bytes=16MiB").option("history_bytes", 5) == 16 * 1024**2
    assert parse("sqlite:///x").option("history_bytes", 5) == 5


def test_user_and_password_can_be_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert parse("etcd://h?user=a&password=b").password == "b"
    (tmp_path / "secret").write_text("from file\n")
    assert parse(f"etcd://h?user=a&password_file={tmp_path}/secret").password == "from file"
    monkeypatch.setenv("MOORING_ETCD_PASSWORD", "from environment")
    assert parse("etcd://a@h").password == "from environment"


@pytest.mark.parametrize(
    "text",
    [
        "etcd://app:hunter2@h:2379",
        "etcd://h:2379?user=app&password=hunter2",
        "etcd://h:2379?password=hunter2",
    ],
)
def test_a_password_is_masked_wherever_a_url_is_shown(text: str):
    url = parse(text)
    assert "hunter2" not in f"{url}{url!r}"
    assert url.password == "hunter2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("127.0.0.1:2379", "not a store URL"),
        ("foo://h", "unknown URL scheme 'foo'"),
        ("ectd://h", "did you mean 'etcd'"),
        ("etcd://", "names no host"),
        ("etcd://h?tmeout=1s", "did you mean 'timeout'"),
        ("etcd://h?ca=x", "no option 'ca'"),
        ("etcd://h?timeout=5", "not a duration"),
        ("etcd://h:port", "is invalid"),
        ("etcd://h:99999", "is invalid"),
        ("etcd://h/path", "is invalid"),
        ("etcd://h1,,h2", "is invalid"),
        ("etcd://h?timeout", "must be name=value"),
        ("etcd://h#x", "%23"),
        ("etcd://h?namespace=", "namespace"),
        ("memory://x?history=many", "history=many"),
        ("memory://x?history=-1000", "history=-1000"),
        ("memory://x?history=0", "history=0"),
        ("memory://x?history_bytes=0", "history_bytes=0"),
        ("memory://x?history_bytes=16MB", "256MiB"),
        ("sqlite:///a%00b", "zero byte"),
        ("etcd://h?timeout=0s", "more than 0"),
        ("etcd://a b:2379", "is invalid"),
        ("etcd://[::1", "is invalid"),
        ("consul://h", "unknown URL scheme 'consul': use one of memory://"),
        ("etcds://h?cert=/some/file", "both"),
        ("etcds://h?key=/some/file", "both"),
        ("sqlite://", "names no file"),
        ("etcds://h?ca=/does/not/exist.pem", "cannot be read"),
        ("etcd://h?password_file=/does/not/exist", "cannot be read"),
    ],
)
async def test_the_unusable_part_of_a_url_is_named(text: str, message: str):
    with pytest.raises(InvalidURL, match=message):
        open_store(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("redis+cluster://h?tls=yes", "it must be on or off"),
        ("redis://h?prefix=a{b}", "must not contain spaces, control characters or braces"),
        ("redis+sentinel://h", "does not name the master"),
        ("redis://h1,h2", "names several hosts"),
        ("redis+cluster://h/1", "only a database may follow the hosts"),
        ("redis://h/1/2", "only a database may follow the hosts"),
        ("redis+sentinel://h/main/first", "the database 'first' must be a number"),
    ],
)
def test_the_unusable_part_of_a_redis_url_is_named(text: str, message: str):
    with pytest.raises(InvalidURL, match=message):
        parse(text)


@pytest.mark.parametrize("scheme", ["rediss", "redis+sentinel", "redis+cluster"])
async def test_an_unusable_tls_file_is_named(scheme: str, tmp_path: Path):
    (tmp_path / "junk").write_text("junk")
    place = {"redis+sentinel": "h/main?tls=on", "redis+cluster": "h?tls=on"}.get(scheme, "h?")
    for option, message in (
        ("ca=/does/not/exist.pem", "ca=/does/not/exist.pem cannot be read"),
        (f"ca={tmp_path}/junk", "no certificate"),
        (f"cert={tmp_path}/junk&key={tmp_path}/junk", "not a certificate with its key"),
    ):
        url = f"{scheme}://{place}&{option}".replace("?&", "?")
        with pytest.raises(InvalidURL, match=message):
            async with connect(url) as hub:
                await hub.registry.services()


@pytest.mark.parametrize("tail", ["?tmeout=1s", "/path", ":port", "?x", "#y", "?timeout=5"])
async def test_no_error_shows_a_password(tail: str):
    with pytest.raises(InvalidURL) as caught:
        open_store(f"etcd://app:hunter2@host{tail}")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidURL) as caught:
        open_store("etcd://host?user=app&password=hunter2&tmeout=1s")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "root:hunter2@host:2379",
        "etcd:/root:hunter2@host",
        "etcd:root:hunter2@host",
        "etcd://root:hunter?2@h",
        "etcd://root:hunter2",
        "etcd://root:hunter2@",
        "etcd://root:hunter2@h#x",
    ],
)
async def test_the_password_of_an_invalid_url_is_not_shown(text: str):
    with pytest.raises(InvalidURL) as caught:
        open_store(text)
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["nonsense", "etcd://h:99999", "etcd://h?timeout=x", "memory://?history=x"]
)
def test_connect_refuses_a_bad_url_at_once(text: str):
    with pytest.raises(InvalidURL):
        connect(text)


@pytest.mark.parametrize("option", ["ca", "cert"])
async def test_an_invalid_certificate_file_is_named(tmp_path: Path, option: str):
    (tmp_path / "junk").write_text("this is no certificate")
    more = f"&key={tmp_path}/junk" if option == "cert" else ""
    with pytest.raises(InvalidURL, match=f"{option}=.*PEM"):
        open_store(f"etcds://h?{option}={tmp_path}/junk{more}")
