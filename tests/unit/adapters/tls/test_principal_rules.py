"""Rules in Kafka's syntax name the users of certificates as Kafka does. Most cases are those of its own test."""

import pytest

from conveyor.adapters.tls.principal_rules import parse_principal_rules
from conveyor.kernel.errors import SettingsError

SERVICES = ", ".join(
    (
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    )
)


def user_of(rules: str, name: str) -> str | None:
    users = (rule(name) for rule in parse_principal_rules(rules))
    return next((user for user in users if user is not None), None)


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=duke", "CN=duke"),
        (SERVICES, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (SERVICES, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (SERVICES, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (SERVICES, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (SERVICES, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT", r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz", r"Tkac\, Adam"),
        ("RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/", "CN=duke,O=x", "duke"),
        ("RULE:^CN=(.*)$/$1/", "O=x", None),
        ("RULE:CN=(.)/$1/", "CN=duke", None),
        (r"RULE:CN=(.*)\/(.*)/$2\/$1/", "CN=a/b", "b/a"),
        ("RULE:(a)(b)?/$1-$2-$12-$3-$0-$x/", "a", "a--a2-$3-a-$x"),
        ("RULE:a/$1/", "a", "$1"),
        (r"RULE:(.*)/\$1\\/", "a", "$1\\"),
        ("  RULE:([A-Z]*)/$1/L   ,RULE:([a-z]+)/$1/U,   DEFAULT  ", "abc", "ABC"),
        (",,RULE:b/c/,,,DEFAULT,,", "b", "c"),
        ("", "CN=duke", None),
        (",   , , ,", "CN=duke", None),
        ("RULE:,RULE:,/,RULE:,\\//U,RULE:,/RULE:,/,RULE:, DEFAULT, /DEFAULT/,DEFAULT", ",RULE:,", ",RULE:,/"),
        ("RULE:,RULE:,/,RULE:,\\//U,RULE:,/RULE:,/,RULE:, DEFAULT, /DEFAULT/,DEFAULT", ", DEFAULT, ", "DEFAULT"),
    ],
)
def test_first_matching_rule_names_the_user(rules: str, name: str, user: str | None) -> None:
    assert user_of(rules, name) == user


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "DEFAULT,RULE:a",
    ],
)
def test_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(SettingsError, match=r"tls\.principal_rules has no valid rule at"):
        parse_principal_rules(rules)


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\\1*["])
def test_pattern_that_re2_refuses_is_named(pattern: str) -> None:
    with pytest.raises(SettingsError, match="which RE2 refuses"):
        parse_principal_rules(f"RULE:{pattern}/x/")


def test_hostile_name_takes_no_time() -> None:
    """A backtracking engine would need 2^30 steps."""
    assert user_of("RULE:(a|a)*b/x/", "a" * 10_000) is None
