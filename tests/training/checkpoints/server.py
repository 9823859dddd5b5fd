"""An OpenAI-compatible server of one tiny model: `python server.py PATH PORT`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

PATH = Path(sys.argv[1])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.reply({"data": [{"id": str(PATH)}]})

    def do_POST(self) -> None:
        size = (PATH / "model.safetensors").stat().st_size  # the model is there
        message = {"role": "assistant", "content": f"w1 {size}"}
        self.reply({"choices": [{"message": message, "finish_reason": "stop"}]})

    def reply(self, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


child = subprocess.Popen(["sleep", "600"])
Path(sys.argv[3]).write_text(f"{os.getpid()} {child.pid}")
HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
