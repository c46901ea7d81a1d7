"""Writes the generated files of docs/."""

from tests.docs.pages import made

for path, text in made().items():
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
