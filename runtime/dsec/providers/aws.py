"""Nodes of AWS EC2: bought by one launch each, known by their tags, ended for good.

Nothing is kept in the process but what a list or a repeat finds again. A purchase whose reply was
lost is found by its token: by the API itself, which answers a repeated client token with the first
launch, and by the token's tag where the API no longer knows it.
"""

from collections.abc import Iterable, Iterator

from dsec.providers import aws_groups, aws_spot
from dsec.providers.aws_calls import Calls, each_chunk
from dsec.providers.aws_errors import MISMATCH, failure_of
from dsec.providers.aws_launch import (
    ensure_template,
    installation_tags,
    run_parameters,
    template_name,
)
from dsec.providers.aws_quota import Quotas, quota_of
from dsec.providers.aws_settings import AwsPool, AwsSettings
from dsec.providers.aws_tags import (
    as_list,
    bought,
    client_token,
    filters,
    lease,
    node_of,
    volume_of,
)
from dsec.providers.provider import (
    BuyAnswer,
    EndAnswer,
    Failure,
    FailureKind,
    Fence,
    Holdings,
    Phase,
    ProviderEvent,
    ProviderNode,
    Scope,
    Wanted,
)
from dsec.providers.user_data import render
from dsec.world.clock import Clock, Randomness
from dsec.world.ec2 import AwsApi, CloudError

LIVE_STATES = ("pending", "running", "stopping", "stopped", "shutting-down")
LONGEST_TOKEN = 200


class AwsProvider:
    """One installation's nodes in one region."""

    def __init__(
        self, api: AwsApi, settings: AwsSettings, clock: Clock, randomness: Randomness
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._calls = Calls(api, clock, randomness)
        self._quotas = Quotas(self._calls, clock) if settings.read_quotas else None
        self._fence = Fence()
        self._templates: set[str] = set()

    async def buy(self, purchase: Wanted, *, epoch: int, run_until: float) -> BuyAnswer:
        """See `NodeProvider.buy`."""
        self._fence.admit(epoch)
        pool = self._settings.pools.get(purchase.offering.pool)
        wrong = self._mistake(purchase, pool)
        if pool is None or wrong:
            return BuyAnswer(purchase.token, purchase.count, failure=wrong)
        count, at_limit = purchase.count, None
        if self._quotas is not None:
            room = await self._quotas.room(purchase.offering)
            if room is not None and room < count:
                count, at_limit = room, self._at_limit(purchase, room)
        if count == 0:
            # an earlier try may have taken the very room that is missing now
            nodes, failure = await self._by_token(purchase.token)
            whole = len(nodes) >= purchase.count
            failure = None if whole else failure or at_limit
            return BuyAnswer(purchase.token, purchase.count, nodes, failure)
        answer = await self._launch(pool, purchase, count, epoch=epoch, run_until=run_until)
        if answer.failure is None and len(answer.nodes) < purchase.count and at_limit is not None:
            answer = BuyAnswer(answer.token, answer.asked, answer.nodes, at_limit)
        if self._quotas is not None:
            self._quotas.forget_usage()
        if pool.auto_scaling_group and answer.nodes:
            failure = await aws_groups.attach(
                self._calls, pool.auto_scaling_group, [node.id for node in answer.nodes]
            )
            answer = BuyAnswer(answer.token, answer.asked, answer.nodes, answer.failure or failure)
        return answer

    async def list(self) -> Holdings:
        """See `NodeProvider.list`."""
        ours = self._settings.installation
        try:
            nodes = tuple(await self._nodes(instance_state_name=LIVE_STATES))
            volumes = await self._calls.pages(
                "ec2", "describe_volumes", "Volumes", Filters=filters(ours, status=["available"])
            )
        except CloudError as error:
            return Holdings(complete=False, failure=failure_of(error))
        self._fence.learn(node.epoch for node in nodes)
        return Holdings(nodes, tuple(volume_of(volume) for volume in volumes))

    async def end(self, nodes: Iterable[str], *, epoch: int) -> EndAnswer:
        """See `NodeProvider.end`. Members of a group leave it, too."""
        self._fence.admit(epoch)
        left = list(nodes)
        done = EndAnswer()
        if any(pool.auto_scaling_group for pool in self._settings.pools.values()):
            done = await aws_groups.end_members(self._calls, left)
            left = [one for one in left if one not in done.ended and one not in done.failed]

        async def terminate(chunk: list[str]) -> None:
            await self._calls.call("ec2", "terminate_instances", InstanceIds=chunk)

        rest = await each_chunk(left, terminate, absent_is_done=True)
        return EndAnswer(done.ended | rest.ended, {**done.failed, **rest.failed})

    async def extend(self, nodes: Iterable[str], run_until: float, *, epoch: int) -> EndAnswer:
        """See `NodeProvider.extend`."""
        self._fence.admit(epoch)
        tags = as_list(lease(run_until, epoch))

        async def tag(chunk: list[str]) -> None:
            await self._calls.call("ec2", "create_tags", Resources=chunk, Tags=tags)

        return await each_chunk(list(nodes), tag, absent_is_done=False)

    async def remove_volumes(self, volumes: Iterable[str], *, epoch: int) -> EndAnswer:
        """See `NodeProvider.remove_volumes`."""
        self._fence.admit(epoch)

        async def remove(chunk: list[str]) -> None:
            await self._calls.call("ec2", "delete_volume", VolumeId=chunk[0])

        return await each_chunk(list(volumes), remove, absent_is_done=True, size=1)

    async def find(self, instance: str) -> ProviderNode | None:
        """Return one live machine of ours, None where there is none. Raises CloudError."""
        found = await self._nodes(instance_id=[instance])
        return next((node for node in found if node.phase.costs), None)

    async def events(self) -> tuple[ProviderEvent, ...]:
        """See `NodeProvider.events`: notices of spot requests, and instances that have ended."""
        try:
            now = self._clock.now().timestamp()
            return await aws_spot.events(self._calls, self._settings.installation, now)
        except CloudError:
            # the next poll sees the same
            return ()

    async def close(self) -> None:
        """See `NodeProvider.close`."""
        self._calls.api.close()

    # ------------------------------------------------------------------ inside

    def _mistake(self, purchase: Wanted, pool: AwsPool | None) -> Failure | None:
        """Return why a purchase is refused here, before AWS is asked."""
        words = ""
        if pool is None:
            known = ", ".join(sorted(self._settings.pools)) or "none"
            words = f"pool: {purchase.offering.pool!r} has no AWS settings; {known} have"
        elif purchase.offering.region != self._settings.region:
            words = f"region: {purchase.offering.region!r}; this is {self._settings.region}"
        elif not 0 < len(purchase.token) <= LONGEST_TOKEN:
            words = f"token: {len(purchase.token)} characters; 1 to {LONGEST_TOKEN} are allowed"
        elif purchase.count < 1:
            words = f"count: {purchase.count}; at least 1 is allowed"
        if not words:
            return None
        return Failure(FailureKind.REFUSED, Scope.OFFERING, "settings", words)

    def _at_limit(self, purchase: Wanted, room: int) -> Failure:
        quota = quota_of(purchase.offering)
        return Failure(
            FailureKind.LIMIT,
            Scope.QUOTA,
            "quota",
            f"quota {quota} of the account has room for {room} of {purchase.count} "
            f"{purchase.offering.instance_type}",
            quota=quota,
        )

    async def _launch(
        self, pool: AwsPool, purchase: Wanted, count: int, *, epoch: int, run_until: float
    ) -> BuyAnswer:
        settings = self._settings
        tags = bought(
            settings.installation, purchase, epoch=epoch, run_until=run_until, extra=pool.tags
        )
        try:
            user_data = render(settings, pool, purchase.offering, run_until)
        except ValueError as problem:
            failure = Failure(FailureKind.REFUSED, Scope.OFFERING, "settings", str(problem))
            return BuyAnswer(purchase.token, purchase.count, failure=failure)
        try:
            parameters = run_parameters(
                pool,
                purchase,
                template=await self._template(pool),
                count=count,
                token=client_token(settings.installation, purchase.token),
                tags=tags,
                user_data=user_data,
            )
            launched = await self._calls.call("ec2", "run_instances", **parameters)
        except CloudError as error:
            failure = failure_of(error, quota=quota_of(purchase.offering))
            if error.code != MISMATCH and not failure.unsure:
                return BuyAnswer(purchase.token, purchase.count, failure=failure)
            return await self._what_became(purchase, failure, known=error.code == MISMATCH)
        nodes = [node_of(one) for one in launched["Instances"]]
        alive = tuple(node for node in nodes if node.phase is not Phase.GONE)
        if len(nodes) == count:
            return BuyAnswer(purchase.token, purchase.count, alive)
        words = f"AWS had {len(nodes)} of {count} {purchase.offering.instance_type}"
        partial = Failure(FailureKind.CAPACITY, Scope.OFFERING, "partial", words)
        return BuyAnswer(purchase.token, purchase.count, alive, partial)

    async def _what_became(self, purchase: Wanted, failure: Failure, *, known: bool) -> BuyAnswer:
        """Find by its tag what a purchase has brought; `known`: AWS says that it has been made."""
        nodes, unread = await self._by_token(purchase.token, ended=True)
        alive = tuple(node for node in nodes if node.phase is not Phase.GONE)
        if unread is None and nodes and (known or len(nodes) >= purchase.count):
            return BuyAnswer(purchase.token, purchase.count, alive)
        unsure = Failure(
            FailureKind.UNKNOWN,
            failure.scope,
            failure.code,
            f"{failure.words}; it may have been carried out, and a repeat tells",
            unsure=True,
        )
        return BuyAnswer(purchase.token, purchase.count, alive, unsure)

    async def _by_token(
        self, token: str, *, ended: bool = False
    ) -> tuple[tuple[ProviderNode, ...], Failure | None]:
        more = {} if ended else {"instance_state_name": LIVE_STATES}
        try:
            return tuple(await self._nodes(token=[token], **more)), None
        except CloudError as error:
            return (), failure_of(error)

    async def _nodes(self, **wanted: Iterable[str]) -> Iterator[ProviderNode]:
        found = await self._calls.pages(
            "ec2",
            "describe_instances",
            "Reservations",
            Filters=filters(self._settings.installation, **wanted),
        )
        return (node_of(one) for reservation in found for one in reservation["Instances"])

    async def _template(self, pool: AwsPool) -> str:
        name = template_name(self._settings, pool)
        if name not in self._templates:
            tags = installation_tags(self._settings, pool)
            await ensure_template(self._calls, name, pool, tags)
            self._templates.add(name)
        return name
