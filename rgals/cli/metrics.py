"""Print the metrics by all their names, with definitions.

For example:
  rgals metrics
  rgals metrics hr ndcg
"""

import argparse
import textwrap

from rgals.metrics._table import definitions, parts


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these, by any of their names")


def run(args: argparse.Namespace) -> int:
    """Print."""
    wanted = {parts(name)[0] for name in args.names}
    for form, (also, text) in definitions().items():
        if not wanted or form.partition("@")[0].partition("(")[0] in wanted:
            print(form + (f"  (also {', '.join(also)})" if also else ""))
            print(textwrap.indent(text, "    ") + "\n")
    print("h_i is 1 where the item at rank i is relevant, else 0; T the number of a user's relevant items.")
    print("Figures are means over the users with test items.")
    return 0
