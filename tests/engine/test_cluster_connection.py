"""Addresses at which no Ray answers: said at once."""

import socket
import threading

import pytest

from speech3.errors import Speech3Error

pytest.importorskip("ray", reason="world cluster needs ray: pip install speech3[cluster]")

from speech3.engine.backends import cluster as nodes


def _listening(answer=b""):
    """A port at which that is said, if anything."""
    door = socket.create_server(("127.0.0.1", 0))

    def serve():
        with door.accept()[0] as guest:
            guest.recv(100)
            guest.sendall(answer)

    if answer:
        threading.Thread(target=serve, daemon=True).start()
    return door


def _refused(address):
    with pytest.raises(Speech3Error) as caught:
        nodes.connect(address, 1)
    return str(caught.value)


@pytest.mark.parametrize("address", ["here", "ray://127.0.0.1:10001", "http://127.0.0.1:8265", "127.0.0.1:"])
def test_malformed_address_is_refused(address):
    assert f"--address {address}: must be HOST:PORT of Ray's head node" in _refused(address)


@pytest.mark.parametrize("host", ["head..node", "n" * 64])
def test_impossible_host_name_is_refused(host):
    assert f"--address {host}:6379: no Ray answers there (" in _refused(f"{host}:6379")


def test_no_reply_from_the_address(monkeypatch):
    monkeypatch.setattr(nodes, "_PROBE_S", 0.2)
    with _listening() as door:
        address = f"127.0.0.1:{door.getsockname()[1]}"
        assert f"--address {address}: no Ray answers there (timed out)" in _refused(address)
    assert "Connection refused" in (said := _refused(address)) and "`ray start --head --port=" in said


def test_address_of_another_service_is_refused():
    with _listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as door:
        assert "(what listens there is not Ray)" in _refused(f"127.0.0.1:{door.getsockname()[1]}")


def test_auto_names_address_of_ray_that_ended(monkeypatch):
    """Its address is still known; Ray itself would try it for a quarter of an hour."""
    with _listening() as door:
        port = door.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    assert "--address auto (" in (said := _refused("auto")) and f":{port}): no Ray answers there" in said
