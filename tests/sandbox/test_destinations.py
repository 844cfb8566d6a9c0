"""What an allow-list permits, and how requests to the proxy are read: by hand and by property."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import ConfigurationError
from envtorch.sandbox import Policy
from envtorch.sandbox.egress.destinations import AllowList, is_public, normal_host
from envtorch.sandbox.egress.request_heads import RefusedRequest, RequestHead, read_head
from tests.support import cpu_s

LIST = AllowList.of(
    ["index.example.org", "*.files.example.org:8443", "192.0.2.7:81", "[2001:db8::1]:80", "10.1.0.0/16"]
)


@pytest.mark.parametrize(
    ("host", "port", "permitted"),
    [
        ("index.example.org", 443, True),
        ("INDEX.example.ORG.", 80, True),
        ("index.example.org", 8080, False),
        ("example.org", 443, False),
        ("evil-index.example.org", 443, False),
        ("a.index.example.org", 443, False),
        ("index.example.org.evil.test", 443, False),
        ("a.files.example.org", 8443, True),
        ("a.b.files.example.org", 8443, True),
        ("files.example.org", 8443, False),
        ("xfiles.example.org", 8443, False),
        ("192.0.2.7", 81, True),
        ("192.0.2.7", 80, False),
        ("[2001:db8::1]", 80, True),
        ("10.1.2.3", 443, True),
        ("10.2.0.1", 443, False),
        ("127.0.0.1", 80, False),
        ("[::ffff:10.1.2.3]", 80, False),
    ],
)
def test_only_what_is_listed_is_permitted(host: str, port: int, permitted: bool) -> None:
    assert LIST.permits(normal_host(host), port) is permitted


@pytest.mark.parametrize(
    "text",
    [
        "127.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "1.2.3",
        "a..b",
        "-a",
        "a_b",
        "é.org",
        "",
        "a b",
        "a" * 64,
        "*",
    ],
)
def test_other_spellings_of_addresses_and_malformed_names_are_no_hosts(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        normal_host(text)


@pytest.mark.parametrize(
    "address",
    [
        *["127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"],
        *["100.64.0.1", "100.100.100.200", "168.63.129.16", "224.0.0.1", "240.0.0.1", "255.255.255.255"],
        *["::1", "::", "fe80::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254"],
        *["2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2001:db8::1"],
    ],
)
def test_no_name_may_stand_for_an_address_that_is_not_public(address: str) -> None:
    found = ipaddress.ip_address(address)
    assert not is_public(found)
    assert not AllowList.of(["index.example.org"]).permits_resolved(found, 443)
    assert AllowList.of(["index.example.org", address]).permits_resolved(found, 443)


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_a_name_may_stand_for_a_public_address(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "entry", ["*", "*.org", "a:0", "a:99999", "a:b", "http://a", "a/b", "1.2.3", "a b", "*.*.a.org"]
)
def test_an_entry_that_means_nothing_or_too_much_is_refused(entry: str) -> None:
    with pytest.raises(ConfigurationError, match="network: "):
        Policy(root="host", open_files=256, network=(entry,))


def test_network_needs_a_writable_root() -> None:
    with pytest.raises(ConfigurationError, match="writable root"):
        Policy(network=("index.example.org",))


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def test_a_tunnel_names_a_host_and_a_port() -> None:
    assert read_head(head("CONNECT Index.Example.org:443 HTTP/1.1", "Host: other")) == RequestHead(
        "CONNECT", "index.example.org", 443
    )


def test_a_plain_request_is_sent_on_with_the_host_that_was_judged() -> None:
    read = read_head(
        head(
            "GET http://a.example.org:81/x?y=1#z HTTP/1.1",
            "Host: other.example.org",
            "Proxy-Authorization: Basic c2VjcmV0",
            "Connection: keep-alive, X-Hop",
            "X-Hop: 1",
            "Accept: */*",
        )
    )
    assert (read.host, read.port, read.body_length) == ("a.example.org", 81, 0)
    assert read.forward == head(
        "GET /x?y=1 HTTP/1.1", "Host: a.example.org:81", "Connection: close", "Accept: */*"
    )


@pytest.mark.parametrize(
    "hostile",
    [
        head("GET / HTTP/1.1", "Host: a.example.org"),
        head("GET https://a.example.org/ HTTP/1.1"),
        head("GET http://user:password@a.example.org/ HTTP/1.1"),
        head("CONNECT a.example.org HTTP/1.1"),
        head("CONNECT a.example.org:0 HTTP/1.1"),
        head("CONNECT a.example.org:443:80 HTTP/1.1"),
        head("CONNECT user@a.example.org:443 HTTP/1.1"),
        head("CONNECT a.example.org:443 HTTP/2"),
        head("CONNECT  a.example.org:443 HTTP/1.1"),
        head("POST http://a.example.org/ HTTP/1.1", "Content-Length: 1", "Content-Length: 2"),
        head("POST http://a.example.org/ HTTP/1.1", "Content-Length: +1"),
        head("POST http://a.example.org/ HTTP/1.1", "Content-Length: 1", "Transfer-Encoding: chunked"),
        head("POST http://a.example.org/ HTTP/1.1", "Transfer-Encoding : chunked"),
        head("GET http://a.example.org/ HTTP/1.1", "X: a\nHost: evil"),
        head("GET http://a.example.org/ HTTP/1.1", "X: a\rHost: evil"),
        head("GET http://a.example.org/ HTTP/1.1", " folded: line"),
        head("GET http://a.example.org/ HTTP/1.1", "Host: a", "Host: b"),
        head("GET http://a.example.org/\x00 HTTP/1.1"),
        head("get http://a.example.org/ HTTP/1.1"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(hostile: bytes) -> None:
    with pytest.raises(RefusedRequest):
        read_head(hostile)


def test_a_request_may_have_a_hundred_headers() -> None:
    fields = [f"X-{number}: {number}" for number in range(100)]
    read = read_head(head("GET http://a.example.org/ HTTP/1.1", *fields))
    assert read.forward.count(b"\r\nX-") == 100
    with pytest.raises(RefusedRequest, match="may have 100 headers"):
        read_head(head("GET http://a.example.org/ HTTP/1.1", *fields, "X: one more"))


def test_headers_that_the_connection_names_cost_no_more_than_others() -> None:
    """Each of them would be looked for among names that were put together for it alone."""

    def request(words: str) -> bytes:
        return head("GET http://a.example.org/ HTTP/1.1", words, *99 * ["X: 1"])

    words = ",".join(f"x{number}" for number in range(2500))
    named = cpu_s(lambda: read_head(request(f"Connection: {words}")), times=20)
    assert named < 10 * cpu_s(lambda: read_head(request(f"Other: {words}")), times=20)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    try:
        read = read_head(data + b"\r\n\r\n")
    except RefusedRequest:
        return
    assert 0 < read.port < 65536


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Host", "X", "connection", "Content-Length", "proxy-x", "TE"]),
            st.text(max_size=20),
        ),
        max_size=6,
    )
)
def test_what_is_sent_on_has_one_host_and_one_length(fields: list[tuple[str, str]]) -> None:
    lines = [f"{name}: {value}" for name, value in fields]
    try:
        sent = read_head(
            "\r\n".join(["POST http://a.example.org/ HTTP/1.1", *lines, "", ""]).encode()
        ).forward
    except RefusedRequest:
        return
    names = [line.partition(b":")[0].lower() for line in sent.removesuffix(b"\r\n\r\n").split(b"\r\n")[1:]]
    assert names.count(b"host") == names.count(b"content-length") == names.count(b"connection") == 1
    assert not any(name.startswith(b"proxy-") for name in names)
