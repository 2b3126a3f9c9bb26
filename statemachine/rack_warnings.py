"""Warnings about a member's rack and tags that contradict each other. A warning changes no
decision.
"""

from __future__ import annotations

from equipoise.assignors.common.racks import RACK_TAG
from equipoise.events.decisions import MemberWarned
from equipoise.statemachine.state import MemberState
from equipoise.statemachine.step_context import StepContext


def warn_of_racks(context: StepContext, member: MemberState) -> None:
    """Emits MemberWarned when the group places by tags and the member's `rack` contradicts its rack
    tag. The tag wins (KIP-925, 4.D.III).
    """
    asked = context.state.settings.rack_aware_tags
    if not asked or member.rack is None:
        return
    tag = member.tags.get(RACK_TAG)
    if RACK_TAG not in asked:
        code = "rack_not_in_tags"
    elif tag is None:
        code = "rack_tag_missing"
    elif tag != member.rack:
        code = "rack_tag_differs"
    else:
        return
    context.emitted.append(MemberWarned(member_id=member.member_id, incarnation=member.incarnation, code=code, said=member.rack, tag=tag))
