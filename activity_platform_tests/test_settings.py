"""Settings are read once, from a mapping, and a wrong one is named in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from activity_platform.failures import UsageError
from activity_platform.settings import Need, Settings

SECRET = "s" * 32


def test_defaults_are_those_of_the_contract() -> None:
    settings = Settings.load({})
    assert settings.domains == ("activity", "audience", "last_activity")
    assert settings.rollup_lag_seconds == 10
    assert settings.retention_days == 30
    assert settings.partitions_ahead == 3
    assert settings.edge_half_life_days == 30
    assert settings.audience_retry_seconds == (10, 60, 300, 900, 3600)
    assert settings.line_requests_per_second == 2000
    assert settings.profile_fresh_hours == 6
    assert settings.line_api_base_url == "https://api.line.me"
    assert settings.jwt_algorithm == "HS256"
    assert settings.archive_before_drop is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ROLLUP_LAG_SECONDS", "soon"),
        ("ROLLUP_LAG_SECONDS", "-1"),
        ("ROLLUP_LAG_SECONDS", "nan"),
        ("ROLLUP_LAG_SECONDS", "1e300"),
        ("RETENTION_DAYS", "30.5"),
        ("RETENTION_DAYS", "-1"),
        ("PARTITIONS_AHEAD", "0"),
        ("EDGE_HALF_LIFE_DAYS", "0"),
        ("AUDIENCE_RETRY_SECONDS", "10,later"),
        ("ARCHIVE_BEFORE_DROP", "yes please"),
        ("DATABASE_URL", "mysql://here"),
        ("REDIS_URL", "localhost:6379"),
        ("S3_ENDPOINT_URL", "localhost:9000"),
        ("DOMAINS", "activity,weather"),
        ("JWT_SECRET", "short"),
        ("JWT_ALGORITHM", "none"),
        ("CORS_ORIGINS", "app.example.com"),
    ],
)
def test_a_senseless_value_is_named_in_one_line(name: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.load({name: value})
    assert str(caught.value).startswith(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "JWT_SECRET"),
        ({"JWT_ALGORITHM": "RS256"}, "JWT_PUBLIC_KEY"),
        ({"JWT_ALGORITHM": "RS256", "JWT_PUBLIC_KEY": "k", "JWT_JWKS_URL": "https://k"}, "JWT_PUBLIC_KEY"),
        ({"JWT_SECRET": SECRET, "JWT_JWKS_URL": "https://keys.example.com"}, "JWT_ALGORITHM"),
    ],
)
def test_the_key_must_fit_the_algorithm(environment: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Settings.load(environment, needs=[Need.TOKENS])


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    assert Settings.load({"JWT_SECRET_FILE": str(tmp_path / "secret")}).jwt_secret == SECRET
    with pytest.raises(UsageError, match="JWT_SECRET_FILE"):
        Settings.load({"JWT_SECRET_FILE": str(tmp_path / "nowhere")})
    with pytest.raises(UsageError, match="both set"):
        Settings.load({"JWT_SECRET": SECRET, "JWT_SECRET_FILE": str(tmp_path / "secret")})


def test_no_secret_shows_when_settings_are_printed() -> None:
    settings = Settings.load({"JWT_SECRET": SECRET, "DATABASE_URL": "postgresql://u:geheim@h/d"})
    assert SECRET not in repr(settings)
    assert "geheim" not in repr(settings)


def test_the_readme_lists_every_variable_as_it_is() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    for variable in Settings.variables().values():
        default = f"`{variable.default}`" if variable.default else ""
        assert f"| `{variable.name}` | {default} | {variable.about} |" in readme, variable.name
