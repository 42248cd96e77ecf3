"""Numbers after flags that no command can mean."""

from __future__ import annotations

from dinorankclip.types import UserError


def check_at_least(least: int, **numbers: int | None) -> None:
    """`numbers`: the name of a flag → its value, None if it was not given."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise UserError(f"--{name.replace('_', '-')} {number}: at least {least}")


def check_interval(level: float, draws: int) -> None:
    """`--level` and `--draws` of bootstrap intervals."""
    from dinorankclip.scoring.paired import fewest_draws

    if not 0 < level < 1:
        raise UserError(f"--level {level}: a share between 0 and 1, such as 0.95")
    if draws < 100:
        raise UserError(f"--draws {draws}: fewer than 100 draws have no quantiles to speak of")
    if draws < fewest_draws(level):
        raise UserError(f"--draws {draws} can show nothing at --level {level:g}: at least {fewest_draws(level)} draws")
