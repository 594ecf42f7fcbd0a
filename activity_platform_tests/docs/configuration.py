"""docs/configuration.md, from settings.py."""

from __future__ import annotations

from activity_platform.settings import DOMAIN_NEEDS, Need, Settings, Variable
from activity_platform_tests.docs.markdown import table

#: No variable that takes certain values only takes this one; each says then what it takes.
_SENSELESS = "?"


def variables() -> str:
    """A table of all of them."""
    rows = [
        (
            f"`{variable.name}`",
            f"`{variable.default}`" if variable.default else "",
            _values(variable),
            "yes" if variable.secret else "",
            variable.about,
        )
        for variable in Settings.variables().values()
    ]
    return table(("Variable", "Default", "Values", "Secret", ""), rows)


def needs() -> str:
    """What each domain can't do without."""
    rows = [
        (f"`{domain}`", ", ".join(f"`{need.value}`" for need in Need if need in wanted))
        for domain, wanted in DOMAIN_NEEDS.items()
    ]
    return table(("Domain", "Needs"), rows)


def _values(variable: Variable) -> str:
    try:
        variable.parse(_SENSELESS)
    except ValueError as error:
        text = str(error)
        if text.startswith("is shorter than "):
            return f"at least {text.removeprefix('is shorter than ')}"
        return text.removeprefix("is not ")
    return "a list, comma-separated" if isinstance(variable.parse("a,b"), tuple) else "text"
