"""A run's environment.json in words."""

from __future__ import annotations

from typing import Any


def described(about: dict[str, Any]) -> str:
    """`Python 3.11.7, Linux x86_64, 2 cores, 1 thread, no GPU, fp32 on cpu; torch 2.13.0, …`"""
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items() if version)
    gpus = ", ".join(about["gpus"]) or "no GPU"
    threads = f"{about['threads']} thread{'s' if about['threads'] != 1 else ''}"
    kind = f", {about['precision']} on {about['device']}" if "precision" in about else ""
    return f"Python {about['python']}, {about['system']}, {about['cores']} cores, {threads}, {gpus}{kind}; {packages}"
