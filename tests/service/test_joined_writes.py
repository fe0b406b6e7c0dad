import asyncio

import pytest

from service.joined_writes import MAX_JOINED_BYTES, JoinedWrites, joining_writes


class FakeTransport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.sent, self.is_open = [], True

    def write(self, data):
        self.sent.append(data)

    def is_closing(self):
        return not self.is_open

    def close(self):
        self.is_open = False

    def get_extra_info(self, name, default=None):
        return f"the {name}"


@pytest.fixture
def transport():
    return FakeTransport()


def within_loop(check):
    async def run():
        check()
        await asyncio.sleep(0)

    asyncio.run(run())


def test_the_second_of_two_writes_sends_both(transport):
    def check():
        joined = JoinedWrites(transport)
        joined.write(b"head")
        assert transport.sent == []
        joined.write(b"body")
        assert transport.sent == [b"headbody"]

    within_loop(check)
    assert transport.sent == [b"headbody"]


def test_a_write_by_itself_is_sent_after_a_pass_of_the_loop(transport):
    async def run():
        joined = JoinedWrites(transport)
        for part in (b"first", b"second"):
            joined.write(part)
            await asyncio.sleep(0)

    asyncio.run(run())
    assert transport.sent == [b"first", b"second"]


@pytest.mark.parametrize("count", [3, 4])
def test_whatever_is_written_is_sent_in_order(transport, count):
    written = [b"%d" % index for index in range(count)]

    def check():
        joined = JoinedWrites(transport)
        for part in written:
            joined.write(part)

    within_loop(check)
    assert b"".join(transport.sent) == b"".join(written)


@pytest.mark.parametrize("size", [0, MAX_JOINED_BYTES, MAX_JOINED_BYTES + 1])
def test_a_long_body_is_not_copied_behind_its_head(transport, size):
    body = bytes(size)

    def check():
        joined = JoinedWrites(transport)
        joined.write(b"head")
        joined.write(body)
        is_long = size > MAX_JOINED_BYTES
        assert transport.sent == ([b"head", body] if is_long else [b"head" + body])

    within_loop(check)
    assert sum(map(len, transport.sent)) == 4 + size


def test_a_connection_is_closed_once_all_is_sent(transport):
    def check():
        joined = JoinedWrites(transport)
        joined.write(b"last")
        joined.close()
        assert transport.sent == [b"last"]
        assert joined.is_closing()

    within_loop(check)
    assert transport.sent == [b"last"]


def test_nothing_is_sent_to_a_client_that_has_left(transport):
    def check():
        joined = JoinedWrites(transport)
        joined.write(b"in vain")
        transport.is_open = False

    within_loop(check)
    assert transport.sent == []


def test_a_protocol_is_given_a_transport_that_is_like_its_own(transport):
    class Protocol:
        def connection_made(self, transport):
            self.transport = transport

    def check():
        protocol = joining_writes(Protocol)()
        protocol.connection_made(transport)
        assert isinstance(protocol.transport, JoinedWrites)
        assert protocol.transport.get_extra_info("peername") == "the peername"

    within_loop(check)
