"""examples/pageviews.py in Quix Streams: BOOTSTRAP FOLDER GROUP COMMIT_S. Run by an interpreter that
has it. GROUP: also how the output topics begin.
"""

import sys

from quixstreams import Application
from quixstreams.dataframe.windows import Count, Reduce

bootstrap, folder, group, commit_s = sys.argv[1:]
app = Application(
    broker_address=bootstrap,
    consumer_group=group,
    state_dir=folder,
    auto_offset_reset="earliest",
    commit_interval=float(commit_s),
    processing_guarantee="exactly-once",
    loglevel="WARNING",
)
clicks, users = (app.dataframe(app.topic(name, key_deserializer="str")) for name in ("clicks", "users"))
last_pages = Reduce(
    initializer=lambda click: [click["page"]],
    reducer=lambda pages, click: [*pages, click["page"]][-5:],
    merger=lambda one, other: [*one, *other][-5:],
)
visits = clicks.session_window(30_000, grace_ms=5_000).agg(pages=last_pages).final(closing_strategy="partition")
visits.apply(lambda each: {"start": each["start"], "end": each["end"] - 1, "pages": each["pages"]}).to_topic(
    app.topic(f"{group}-sessions", key_serializer="str")
)
views = clicks.join_asof(users, how="left", on_merge=lambda click, user: {**click, "country": user["country"] if user else "??"})
minutes = views.group_by("country").tumbling_window(60_000, grace_ms=86_400_000).agg(views=Count()).current()
minutes.apply(lambda each: {"minute": each["start"], "views": each["views"]}).to_topic(app.topic(f"{group}-counts", key_serializer="str"))

if __name__ == "__main__":
    app.run()
