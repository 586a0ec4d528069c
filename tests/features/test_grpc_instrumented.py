"""gRPC channels in an instrumented process: OpenTelemetry and Sentry wrap the functions of gRPC for
the whole process, before any channel is created."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from mooring.testing.etcd import EtcdServer
from tests.acceptance.commands import python_program

INSTRUMENT = {
    "opentelemetry": """
from opentelemetry import trace
from opentelemetry.instrumentation.grpc import GrpcAioInstrumentorClient, GrpcInstrumentorClient
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
GrpcInstrumentorClient().instrument()
GrpcAioInstrumentorClient().instrument()

def seen():
    return [span.name for span in exporter.get_finished_spans()]
""",
    "sentry": """
import sentry_sdk
from sentry_sdk.integrations.grpc import GRPCIntegration

events = []
sentry_sdk.init(
    dsn="http://key@127.0.0.1:1/1",
    traces_sample_rate=1.0,
    integrations=[GRPCIntegration()],
    before_send_transaction=lambda event, hint: events.append(event),
)
transaction = sentry_sdk.start_transaction(name="test")
transaction.__enter__()

def seen():
    transaction.__exit__(None, None, None)
    return [str(span["description"]) for event in events for span in event["spans"]]
""",
}

CALLS = """
import asyncio
import sys

import mooring
import mooring.grpc
import mooring.sync
from tests.features.grpc_echo.servers import EchoServer, Word, pb2_grpc

async def call(url):
    async with (
        mooring.connect(url) as hub,
        EchoServer("a") as server,
        hub.register(mooring.Instance("echo", "127.0.0.1", server.port)),
        mooring.grpc.aio.channel("etcdv3:///echo", hub=hub, retry=["echo.Echo/Count"]) as channel,
    ):
        stub = pb2_grpc.EchoStub(channel)
        assert (await stub.Say(Word(text="hi"), timeout=20)).text == "hi"
        assert [each.text async for each in stub.Count(Word(text="2"), timeout=20)] == ["1", "2"]
        assert (await stub.Join(iter([Word(text="a"), Word(text="b")]))).text == "a b"
        chat = stub.Chat()
        await chat.write(Word(text="hi"))
        assert (await chat.read()).text == "HI"
        await chat.done_writing()
        await asyncio.to_thread(call_blocking, url)

def call_blocking(url):
    with (
        mooring.sync.connect(url) as hub,
        mooring.grpc.channel("etcdv3:///echo", hub=hub) as channel,
    ):
        stub = pb2_grpc.EchoStub(channel)
        assert stub.Say(Word(text="hi"), timeout=20).text == "hi"
        assert [each.text for each in stub.Count(Word(text="2"), timeout=20)] == ["1", "2"]
        assert stub.Join(iter([Word(text="a"), Word(text="b")])).text == "a b"
        assert [each.text for each in stub.Chat(iter([Word(text="hi")]))] == ["HI"]

asyncio.run(call(sys.argv[1]))
spans = seen()
assert sum("echo.Echo/Say" in name for name in spans) == 2, spans
print("done")
"""


@pytest.mark.parametrize("instrument", INSTRUMENT)
def test_calls_work_and_are_traced(instrument: str, etcd: Callable[[str], EtcdServer]):
    url = f"{etcd('3.5').url}?namespace=/{uuid.uuid4().hex}"
    run = python_program(INSTRUMENT[instrument] + CALLS, url)
    assert run.stdout == "done\n", run.stdout + run.stderr
