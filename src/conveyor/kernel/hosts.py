"""Names and addresses of machines."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, whatever other machines call so: `localhost`, or an address such as
    127.0.0.1.
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
