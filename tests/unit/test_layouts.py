"""One suite over the four layouts: supported fields survive, foreign keys are ignored."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mooring
from mooring.errors import InvalidName, InvalidRequest
from mooring.model import Config, Instance, Service, Status
from mooring.registry.json_values import Malformed
from mooring.registry.kv.layouts import layout_of
from mooring.registry.kv.layouts.layout import CARRIES, File, Layout
from mooring.registry.operations import check_config, decode_info
from mooring.store import Entry, everything

LAYOUTS = ["tree", "plain:/services/", "plain:", "endpoints:/e", "hprose"]

text = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)
names = text.filter(lambda s: "/" not in s and s == s.strip() and s not in (".", "..", "info"))
parts = names.filter(lambda s: ":" not in s and not any(c.isspace() for c in s))
hosts = st.one_of(
    st.ip_addresses().map(str).filter(lambda s: s not in ("0.0.0.0", "::", "::ffff:0:0")),
    st.from_regex(r"[a-z][a-z0-9]{0,8}(\.[a-z][a-z0-9]{0,8}){0,2}", fullmatch=True),
)
ports = st.integers(1, 65535)
times = st.none() | st.datetimes(
    datetime.datetime(1980, 1, 1), datetime.datetime(2100, 1, 1), timezones=st.just(datetime.UTC)
)
metrics = st.dictionaries(
    text, st.dictionaries(text, st.integers() | st.booleans() | text), max_size=3
)
statuses = st.builds(
    Status,
    st.sampled_from(["up", "draining", "down"]),
    st.booleans(),
    registered_at=times,
    updated_at=times,
    metrics=metrics,
)
weights = st.floats(0, 1e6, allow_nan=False) | st.integers(0, 100).map(float)


@st.composite
def instances(draw: st.DrawFn, layout: str = "tree") -> Instance:
    hprose = layout == "hprose"
    grouped = draw(st.booleans()) and not hprose
    name = draw(parts if hprose else names)
    return Instance(
        service=f"{draw(names)}/{name}" if grouped else name,
        host=draw(hosts),
        port=draw(ports),
        protocol=draw(st.sampled_from(["tcp", "http", "wss"])),
        version=draw(text),
        zone=draw(st.just("") | text),
        weight=draw(weights),
        metadata=draw(st.dictionaries(text.filter(lambda s: s != "path"), text, max_size=3)),
        ports=draw(st.dictionaries(text, ports, max_size=3)),
        id=draw(st.uuids().map(str)) if hprose else "",
        incarnation=draw(st.uuids().map(lambda u: u.hex)),
        status=draw(statuses),
    )


def entry(key: bytes, value: bytes) -> Entry:
    return Entry(key, value, 2, 2, 1)


def files_of(layout: Layout, values: Mapping[bytes, bytes]) -> dict[File, Entry]:
    files: dict[File, Entry] = {}
    for key, value in values.items():
        place = layout.locate(key)
        assert place is not None
        files[place.file] = entry(key, value)
    return files


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.data())
def test_supported_fields_survive(name: str, data: st.DataObject):
    layout = layout_of(name)
    instance = data.draw(instances(layout.name))
    instance = msgspec.structs.replace(instance, service=layout.canonical(instance.service))
    values = layout.encode(instance)
    for key in values:
        place = layout.locate(key)
        assert place is not None
        assert (place.service, place.id) == (instance.service, instance.id)
        assert key in layout.home(instance)
        assert key in layout.ranges(instance.service)[0]
    made = layout.assemble(instance.service, instance.id, files_of(layout, values))
    assert made.problems == ()
    default = Instance(instance.service, instance.host, instance.port, id=instance.id)
    carried = {
        field: getattr(instance if field in layout.carries else default, field)
        for field in ("protocol", "version", "zone", "weight", "metadata", "ports", "status",
                      "incarnation")
    }  # fmt: skip
    assert made.instance == msgspec.structs.replace(default, **carried)


@pytest.mark.parametrize("name", LAYOUTS)
@given(key=st.binary(min_size=1, max_size=60), value=st.binary(max_size=60))
def test_garbage_never_breaks_it(name: str, key: bytes, value: bytes):
    layout = layout_of(name)
    for one in (key, b"/registry/" + key, b"/services/" + key, b"hprose-service/" + key):
        place = layout.locate(one)
        if place is not None and place.id:
            made = layout.assemble(place.service, place.id, {place.file: entry(one, value)})
            assert made.instance is None or not made.problems


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.data())
def test_a_damaged_value_never_breaks_it(name: str, data: st.DataObject):
    layout = layout_of(name)
    instance = data.draw(instances(layout.name))
    files = files_of(layout, layout.encode(instance))
    damaged = data.draw(st.sampled_from([*files]))
    value = files[damaged].value
    at = data.draw(st.integers(0, len(value)))
    junk = data.draw(st.binary(max_size=4) | st.sampled_from([b"\xff", b"9" * 5000]))
    value = value[:at] + junk + value[at + data.draw(st.integers(0, 4)) :]
    layout.assemble(instance.service, instance.id, {**files, damaged: entry(b"/key", value)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tree", b'{"serviceVersion":"\xff"}'),
        ("tree", b'{"\xff":1}'),
        ("plain:/services/", b"10.0.0.1:" + b"1" * 5000),
        ("plain:/services/", b"\xff:80"),
        ("endpoints:/e", b'{"Addr":"10.0.0.1:80","Metadata":{"a":"\xff"}}'),
        ("endpoints:/e", b'{"Addr":"10.0.0.1:' + b"1" * 5000 + b'"}'),
        ("hprose", b'{"ServerUrl":"tcp://10.0.0.1:80/\xff"}'),
        ("hprose", b'{"ServerUrl":"tcp://10.0.0.1:' + b"1" * 5000 + b'"}'),
    ],
)
def test_invalid_text_and_endless_ports_are_reported(name: str, value: bytes):
    made = layout_of(name).assemble("a", "10.0.0.1:80", {"data": entry(b"/key", value)})
    assert made.instance is None
    assert [problem.key for problem in made.problems] == [b"/key"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_service_never_sees_another_with_the_same_prefix(name: str):
    layout = layout_of(name)
    longer = Instance("tcp.hello2", "10.0.0.1", 80, id="u")
    assert all(key not in r for key in layout.encode(longer) for r in layout.ranges("tcp.hello"))


def test_the_table_lists_what_each_layout_supports():
    assert set(CARRIES) == {"tree", "plain", "endpoints", "hprose", "redis"}
    instance = Instance(
        "a", "10.0.0.1", 80, "http", "1.2", "z", 2, {"a": "b"}, {"http": 81}, id="u"
    )
    lost = {name: layout_of(name).cannot_carry(instance) for name in CARRIES if name != "redis"}
    assert lost == {
        "tree": ["id"],
        "endpoints": ["id"],
        "hprose": ["version", "zone", "weight", "metadata", "ports"],
        "plain": ["protocol", "version", "zone", "weight", "metadata", "ports", "id"],
    }


def test_the_error_for_an_unknown_layout_names_the_nearest():
    with pytest.raises(InvalidRequest, match="did you mean 'endpoints'"):
        layout_of("endpoint:/x")
    with pytest.raises(InvalidRequest, match="root of its own"):
        layout_of("tree:/x")


def test_listing_the_whole_store_is_refused():
    with pytest.raises(InvalidRequest, match="give it one"):
        layout_of("plain").roots()


class TestTree:
    layout = layout_of("tree")
    instance = Instance(
        "Common/VerifyCodeService", "192.168.0.1", 11080, version="1.4.0", metadata={"作者": "李"}
    )

    def test_keys_are_those_of_the_document(self):
        folder = "/registry/Common/VerifyCodeService/192.168.0.1:11080"
        assert [*self.layout.encode(self.instance)] == [
            f"{folder}/data".encode(),
            f"{folder}/status".encode(),
        ]
        assert [*self.layout.lasting(self.instance)] == [
            b"/registry/Common/info",
            b"/registry/Common/VerifyCodeService/info",
        ]
        assert self.layout.config_key("Common/VerifyCodeService", "192.168.0.1:11080") == (
            f"{folder}/config".encode()
        )

    def test_values_are_readable_json_with_the_fields_of_the_document(self):
        value = next(iter(self.layout.encode(self.instance).values()))
        assert "李".encode() in value
        fields = json.loads(value)
        assert fields["serviceType"] == "dolphin"
        assert fields["frameworkVersion"]
        assert (fields["serviceVersion"], fields["tags"]) == ("1.4.0", {"作者": "李"})
        assert fields["weight"] == 1
        assert b'"weight":1,' in value

    def test_a_bare_name_belongs_to_the_default_group(self):
        bare = Instance("echo", "10.0.0.1", 80)
        assert next(iter(self.layout.encode(bare))).startswith(b"/registry/default/echo/")
        assert self.layout.canonical("default/echo") == "echo"

    def test_values_of_other_programs_are_read_with_defaults(self):
        files: dict[File, Entry] = {"data": entry(b"k", b'{"serviceVersion":"2","more":[1]}')}
        made = self.layout.assemble("a", "10.0.0.1:80", files).instance
        assert made == Instance("a", "10.0.0.1", 80, version="2")

    def test_more_metadata_than_we_would_register_is_read(self):
        value = b'{"tags":{"a":"%s"}}' % (b"x" * 100_000)
        made = self.layout.assemble("a", "10.0.0.1:80", {"data": entry(b"/key", value)}).instance
        assert made is not None
        assert len(made.metadata["a"]) == 100_000

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (b"", "is not valid JSON"),
            (b"[]", "not a JSON object"),
            (b'{"tags":{"a":1}}', "must be text, not a whole number"),
            (b'{"weight":-1}', "at least 0"),
            (b'{"ports":{"a":0}}', "between 1 and 65535"),
            (b"\xff", "is not valid JSON"),
        ],
    )
    def test_a_bad_value_is_reported_with_its_key(self, value: bytes, message: str):
        made = self.layout.assemble("a", "10.0.0.1:80", {"data": entry(b"/key", value)})
        assert made.instance is None
        (problem,) = made.problems
        assert problem.key == b"/key"
        assert message in problem.reason

    def test_a_bad_status_does_not_hide_the_instance(self):
        files: dict[File, Entry] = {
            "data": entry(b"/d", b"{}"),
            "status": entry(b"/s", b"junk"),
            "config": entry(b"/c", b'{"weight":"x"}'),
        }
        made = self.layout.assemble("a", "10.0.0.1:80", files)
        assert made.instance == Instance("a", "10.0.0.1", 80)
        assert [problem.key for problem in made.problems] == [b"/s", b"/c"]

    def test_a_config_and_a_description_that_are_not_text_are_malformed(self):
        with pytest.raises(Malformed, match="is not UTF-8"):
            self.layout.decode_config(b'{"zone":"\xff"}')
        place = self.layout.locate(self.layout.info_key(group="Common"))
        assert place == ("Common", "", "", "info")
        with pytest.raises(Malformed, match="is not UTF-8"):
            decode_info(b'{"displayName":"\xff"}', group="Common")

    def test_an_id_with_an_endless_port_is_reported(self):
        id = f"10.0.0.1:{'1' * 5000}"
        made = self.layout.assemble("a", id, {"data": entry(b"/key", b"{}")})
        assert made.instance is None
        assert [problem.key for problem in made.problems] == [b"/key"]

    def test_a_config_alone_is_not_an_instance(self):
        made = self.layout.assemble("a", "10.0.0.1:80", {"config": entry(b"/c", b"{}")})
        assert made == (None, ())

    def test_config_has_typed_custom_values(self):
        config = self.layout.decode_config(b'{"weight":3,"enabled":false,"timeout":2.5,"on":[1]}')
        assert config == Config(3.0, False, values={"timeout": 2.5, "on": [1]})

    def test_descriptions(self):
        key = self.layout.info_key(service="Common/A")
        place = self.layout.locate(key)
        assert place is not None
        info = decode_info('{"displayName":"验证码"}'.encode(), service=place.service)
        assert info == Service("Common/A", "验证码")


class TestHprose:
    layout = layout_of("hprose")

    def test_the_value_has_its_fields_in_order_without_spaces(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("os.cpu_count", lambda: 8)
        server = Instance("tcp.hello", "169.254.128.35", 4321, "tcp4", id="fe09")
        assert self.layout.encode(server) == {
            b"hprose-service/tcp.hello/fe09": (
                b'{"UUID":"fe09","Domain":"tcp.hello",'
                b'"ServerUrl":"tcp4://169.254.128.35:4321/","CPU":8}'
            )
        }

    def test_a_leading_slash_is_accepted(self):
        place = self.layout.locate(b"/hprose-service/tcp.hello/u")
        assert place is not None
        assert place.service == "tcp.hello"

    def test_an_unknown_scheme_is_refused(self):
        with pytest.raises(InvalidRequest, match="does not support the protocol 'udp'"):
            self.layout.encode(Instance("a", "10.0.0.1", 80, "udp", id="u"))

    def test_a_group_is_refused(self):
        with pytest.raises(InvalidName, match="has no group"):
            self.layout.canonical("Common/a")


class TestEndpoints:
    layout = layout_of("endpoints:/e/")

    def test_values_of_a_go_service_are_read(self):
        value = b'{"Op":0,"Addr":"10.0.0.1:80","Metadata":"whatever"}'
        made = self.layout.assemble("echo", "10.0.0.1:80", {"data": entry(b"/e/echo/x", value)})
        assert made.instance == Instance("echo", "10.0.0.1", 80)


@pytest.mark.parametrize("name", ["plain:/services/", "endpoints:/e"])
def test_services_that_a_layout_distinguishes_have_separate_tombstones(name: str):
    layout = layout_of(name)
    bare, grouped = (
        Instance(service, "10.0.0.1", 80, incarnation="i") for service in ("foo", "default/foo")
    )
    assert layout.tombstone(bare) != layout.tombstone(grouped)


def test_a_service_of_the_default_group_has_one_tombstone_in_every_spelling():
    layout = layout_of("tree")
    bare, grouped = (
        Instance(service, "10.0.0.1", 80, incarnation="i") for service in ("foo", "default/foo")
    )
    assert layout.tombstone(bare) == layout.tombstone(grouped)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("tree", b"/registry/default/info/10.0.0.1:80/data"),
        ("tree", b"/registry/default/ lead/10.0.0.1:80/data"),
        ("tree", b"/registry/default/ lead/config"),
        ("tree", b"/registry/ g/info"),
        ("hprose", b"hprose-service/info/u"),
        ("hprose", b"hprose-service/a b/u"),
    ],
)
def test_an_invalid_name_is_not_listed(name: str, key: bytes):
    assert layout_of(name).locate(key) is None


@pytest.mark.parametrize("name", LAYOUTS)
def test_fields_that_a_layout_cannot_carry_are_listed(name: str):
    instance = Instance(
        "a", "10.0.0.1", 80, id="my-id", enabled=False, config=Config(weight=0), ephemeral=False
    )
    lost = layout_of(name).cannot_carry(instance)
    expected = ["ephemeral", "enabled", "config", *([] if name == "hprose" else ["id"])]
    assert sorted(lost) == sorted(expected)
    assert layout_of(name).cannot_carry(Instance("a", "10.0.0.1", 80)) == []


@pytest.mark.parametrize(
    ("name", "ttl"), [("tree", 15), ("plain:/s/", 5), ("endpoints:/e/", 15), ("hprose", 10)]
)
async def test_the_default_lease_of_each_layout(name: str, ttl: float):
    one = Instance("echo", "10.0.0.1", 80, protocol="http")
    async with mooring.connect(layout=name) as hub, hub.register(one):
        entries = (await hub.store.read(everything())).entries
        (lease,) = {entry.lease for entry in entries} - {0}
        granted = await hub.store.remaining(lease)
        assert granted is not None
        assert granted.ttl == ttl


def test_an_operator_override_has_the_metadata_limit_of_an_instance():
    check_config("a", {"metadata": {"k": "x" * 65_000}})
    with pytest.raises(InvalidRequest, match=r"metadata of a has 70001 bytes"):
        check_config("a", {"metadata": {"k": "x" * 70_000}})
