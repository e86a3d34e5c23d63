"""Tells public addresses from those that only the broker's own machine or network reaches."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NAT64 = IPv6Network("64:ff9b::/96")
"""Ends with an IPv4 address that a gateway connects to. Source: RFC 6052."""
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_REFUSED_6 = (
    IPv6Network("2001::/23"),  # Protocols of the IETF, Teredo among them.
    IPv6Network("2001:db8::/32"),
    IPv6Network("2002::/16"),  # 6to4, which ends with any IPv4 address.
    IPv6Network("3fff::/20"),
)
_REFUSED_4 = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("100.64.0.0/10"),
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv4Network("198.18.0.0/15"),
    IPv4Network("240.0.0.0/4"),
)


def is_public(text: str) -> bool:
    """Return whether an address is one of the public internet. Anything else is refused, also what embeds an address
    that is not public, and what is no address.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        return _is_public_6(address)
    return _is_public_4(address)


def is_loopback(text: str) -> bool:
    """Return whether an address is this machine's own."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def _is_public_4(address: IPv4Address) -> bool:
    if any(address in network for network in _REFUSED_4):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _is_public_6(address: IPv6Address) -> bool:
    if address.scope_id is not None or address.ipv4_mapped is not None:
        return False
    if address in _NAT64:
        return _is_public_4(IPv4Address(int(address) & 0xFFFF_FFFF))
    if any(address in network for network in _REFUSED_6):
        return False
    return address in _GLOBAL_UNICAST and address.is_global and not address.is_multicast
