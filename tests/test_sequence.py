"""`tools/sequence.py` draws the sequence diagrams of the pages, and refuses what it cannot draw."""

from xml.etree import ElementTree

import pytest

from tools import sequence

DIAGRAM = """\
sequenceDiagram
    participant C as client
    participant B as broker: connection, producer
    C->>B: SEND <1>
    B->>B: check
    B-->>C: SEND_RECEIPT
"""


def test_a_diagram_has_its_participants_and_messages() -> None:
    drawn = ElementTree.fromstring(sequence.draw(DIAGRAM))
    texts = [each.text for each in drawn.iter("text")]
    assert texts == [
        *("client", "broker: connection,", "producer"),
        *("SEND <1>", "check", "SEND_RECEIPT"),
    ]
    dashes = [each.get("stroke-dasharray") for each in drawn.iter("line")]
    assert dashes == ["2 4", "2 4", "none", "5 4"]
    assert len(list(drawn.iter("circle"))) == 1
    (to_broker, to_client) = drawn.iter("polygon")
    assert to_broker.get("points") == "225,86 217,82 217,90"
    assert to_client.get("points") == "75,154 83,150 83,158"


def test_only_the_blocks_of_a_page_are_replaced() -> None:
    page = f"# Page\n\n```mermaid\n{DIAGRAM}```\n\n```python\nx = 1\n```\n"
    shown = sequence.on_page_markdown(page)
    assert shown.startswith("# Page\n\n<div>\n<svg ")
    assert shown.endswith("</svg>\n</div>\n\n```python\nx = 1\n```\n")


@pytest.mark.parametrize(
    "block",
    [
        "",
        "flowchart LR\n    A --> B\n",
        "sequenceDiagram\n    A->>B: nobody is named\n",
        "sequenceDiagram\n    participant A as a\n    Note over A: this is not known\n",
    ],
)
def test_a_block_that_cannot_be_drawn_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match="draw"):
        sequence.draw(block)
