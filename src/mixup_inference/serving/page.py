"""The page that describes the server: its OpenAPI document for people, without scripts."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{ api.info.title }}</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 48rem; margin: 2rem auto;
    padding: 0 1rem }
  code, pre { background: #8882; border-radius: 3px } code { padding: 0 .2rem }
  pre { padding: .6rem; overflow-x: auto } td { padding-right: 1rem; vertical-align: top }
</style>
<h1>{{ api.info.title }} {{ api.info.version }}</h1>
<p>{{ api.info.description }}</p>
<p>For programs: <a href="openapi.json">openapi.json</a>.</p>
{% for path, methods in api.paths.items() %}{% for method, what in methods.items() %}
<h2><code>{{ method | upper }} {{ path }}</code></h2>
<p>{{ what.description or what.summary }}</p>
{% if what.requestBody %}<p>Takes {{ what.requestBody.content | join(", ") }}.</p>{% endif %}
<table>{% for status, answer in what.responses.items() %}
<tr><td>{{ status }}</td><td>{{ answer.description }}</td></tr>{% endfor %}</table>
{% endfor %}{% endfor %}
<h2>Types</h2>
{% for name, schema in api.components.schemas.items() %}
<details><summary><code>{{ name }}</code></summary><pre>{{ schema | pretty }}</pre></details>
{% endfor %}
</html>
"""


def page(api: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    environment = Environment(autoescape=True)
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2)
    return environment.from_string(PAGE).render(api=api)
