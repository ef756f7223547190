"""The options of the bench of many topics."""

from bench.many_topics import make_parser


def test_each_option_has_a_help_text() -> None:
    help_ = make_parser().format_help()
    options = ["--topics", "--lost", "--at-once", "--real-time", "--py-spy", "--to"]
    assert all(f"\n  {option} " in help_ for option in options)
    assert all(action.help for action in make_parser()._actions)
