"""examples/pageviews.py itself, with a worker in its process: BOOTSTRAP FOLDER."""

import asyncio
import sys

from equipoise import Connection, Member
from examples.pageviews import OPTIONS, PROCESSORS

if __name__ == "__main__":
    bootstrap, folder = sys.argv[1:]
    member = Member(
        "pageviews",
        processors=PROCESSORS,
        create_topics=True,
        member_id="m1",
        lead=True,
        prefix="pv",
        state_directory=folder,
        connection=Connection(bootstrap=bootstrap),
        **OPTIONS,
    )
    sys.exit(asyncio.run(member.run()))
