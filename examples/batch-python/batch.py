"""Leaves a batch of prompts with a stage, and fetches the answers later.

    python batch.py submit ../batch/questions.json    prints the id of the batch
    python batch.py get ID                            waits for the answers, and prints them

It needs nats-py (pip install nats-py). NATS_URL and STAGE_NAME say where the stage is.
"""

import asyncio
import json
import os
import sys
import uuid

import nats

SUBJECTS = os.environ.get("STAGE_NAME", "stage") + ".llm_batch."


async def ask(nc, request, body, timeout):
    """Sends a request and returns its reply. A service error has its code in the headers."""
    m = await nc.request(SUBJECTS + request, json.dumps(body).encode(), timeout=timeout)
    code = (m.headers or {}).get("Nats-Service-Error-Code")
    if code:
        raise SystemExit(code + ": " + m.headers.get("Nats-Service-Error", ""))
    return json.loads(m.data)


async def submit(nc, path):
    with open(path, encoding="utf-8") as f:
        request = json.load(f)
    # The client chooses the id: if the reply gets lost, the same request again is still the
    # same batch.
    request.update({"id": uuid.uuid4().hex, "keep": "48h"})
    for attempt in range(3):
        try:
            print((await ask(nc, "submit", request, 10))["id"])
            return
        except nats.errors.TimeoutError:
            if attempt == 2:
                raise


async def get(nc, batch):
    while True:
        reply = await ask(nc, "get", {"id": batch, "wait": "30s"}, 60)
        if reply["state"] in ("done", "cancelled"):
            break
        print(f"{reply['state']}: {reply['done']} of {reply['total']} answered", file=sys.stderr)
    for i, result in enumerate(reply["results"]):
        if result["status"] == "success":
            print(result["content"])
        else:
            print(f"prompt {i}: {result['error']}", file=sys.stderr)


async def main():
    commands = {"submit": submit, "get": get}
    if len(sys.argv) != 3 or sys.argv[1] not in commands:
        raise SystemExit("give submit FILE, or get ID")
    nc = await nats.connect(os.environ.get("NATS_URL", "nats://localhost:4222"))
    try:
        await commands[sys.argv[1]](nc, sys.argv[2])
    finally:
        await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
