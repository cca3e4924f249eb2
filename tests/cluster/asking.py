"""A question to a daemon by its socket: what it knows of all nodes, which is the verb "cluster".

The frames are those of src/base/framing.h.
"""

import json
import socket
import struct

ADMIN_REQUEST, ADMIN_REPLY = 17, 18
ANSWER_TIMEOUT_S = 10


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frame(kind, *texts):
    payload = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    head = struct.pack("<4sHHHHI", b"UNRF", 1, 1, kind, 0, len(payload))
    return head + struct.pack("<I", crc32c(head + payload)) + payload


def ask_daemon(path, verb):
    """The answer; OSError where nobody answers, ValueError for a refusal."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_TIMEOUT_S)
        connection.connect(str(path))
        connection.sendall(frame(ADMIN_REQUEST, verb.encode(), b"{}"))
        with connection.makefile("rb") as answer:
            head = answer.read(20)
            if len(head) < 20:
                raise ConnectionError(f"{path}: the daemon closed the connection")
            kind, size = struct.unpack_from("<H2xI", head, 8)
            payload = answer.read(size)
    code, length = struct.unpack_from("<II", payload)
    if kind != ADMIN_REPLY or code != 0:
        raise ValueError(payload[8:8 + length].decode())
    return json.loads(payload[12 + length:])
