"""x"""

import typer

app = typer.Typer()


@app.command()
def archive() -> None:
    """x"""
