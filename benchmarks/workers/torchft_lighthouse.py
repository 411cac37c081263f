"""The rendezvous service of torchft; writes its address to ``BENCH_ADDRESS_FILE`` and waits for its end."""

import os
import signal
from pathlib import Path

from torchft.coordination import LighthouseServer


def main() -> None:
    server = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=1,
        join_timeout_ms=int(os.environ["BENCH_JOIN_TIMEOUT_MS"]),
        heartbeat_timeout_ms=int(os.environ["BENCH_HEARTBEAT_TIMEOUT_MS"]),
    )
    draft = Path(os.environ["BENCH_ADDRESS_FILE"] + ".draft")
    draft.write_text(server.address(), encoding="utf-8")
    draft.rename(os.environ["BENCH_ADDRESS_FILE"])
    signal.pause()


if __name__ == "__main__":
    main()
