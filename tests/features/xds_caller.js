// The same client as xds_caller.py, with gRPC's own implementation for Node: it calls again and
// again, and prints a line for each answer. Usage: node xds_caller.js TARGET
"use strict";

const grpc = require("@grpc/grpc-js");
require("@grpc/grpc-js-xds").register();

const DEADLINE = 20_000; // ms
const PAUSE = 2; // ms

const client = new grpc.Client(process.argv[2], grpc.credentials.createInsecure());
const bytes = (value) => value;

function call() {
  const options = { deadline: Date.now() + DEADLINE };
  client.makeUnaryRequest("/test.Echo/Who", bytes, bytes, Buffer.alloc(0), options, (error, answer) => {
    const line = error ? `!${grpc.status[error.code]} ${error.details}` : answer.toString();
    console.log(line.replaceAll("\n", " "));
    setTimeout(call, PAUSE);
  });
}

process.stdin.on("end", () => process.exit()).resume();
call();
