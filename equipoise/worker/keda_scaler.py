"""Answers KEDA's external scalers over gRPC: as many members as `GroupSizes` says.

The metadata of a trigger name the group (``group``) and, as text, the fields of `FollowingPolicy`.
KEDA divides the metric by its target, which is 1 here: so many replicas run. Without an answer it
gets UNAVAILABLE, and keeps the replicas that it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from equipoise.events.errors import InputError
from equipoise.replay.sizing.policy import FollowingPolicy, policy_of
from equipoise.worker.group_sizes import NoAnswerError

if TYPE_CHECKING:
    from grpc.aio import ServicerContext

METRIC = "members"
KEDAS_OWN = frozenset({"scalerAddress", "metricType", "caCert", "tlsCertFile", "tlsClientCert", "tlsClientKey", "unsafeSsl", "enableTLS"})
"""Metadata of a trigger that are KEDA's."""
LOOK_S = 10.0
"""How often a stream says whether the group is active."""
MISSING = "scaler_port: needs the extra keda: pip install 'equipoise[keda]'"
Ask = Callable[[str, FollowingPolicy], Awaitable[dict[str, Any]]]


def question_of(metadata: Mapping[str, str]) -> tuple[str, FollowingPolicy]:
    """Returns group and policy. Raises InputError for metadata without a group, or with a value
    that is none.
    """
    group = metadata.get("group")
    if not group:
        raise InputError("metadata.group: name the group that is to be scaled")
    return group, policy_of({name: value for name, value in metadata.items() if name != "group" and name not in KEDAS_OWN})


class KedaScaler:
    """Serves on `host`:`port` from `start` to `stop`. `port` 0: any free one. `ask` returns how
    many members a group should run, as `GroupSizes.answer`. `tls`: private key and certificate, in
    PEM form; None serves without TLS.
    """

    def __init__(self, ask: Ask, host: str, port: int, tls: tuple[bytes, bytes] | None = None) -> None:
        self._ask, self._host, self._port, self._tls = ask, host, port, tls
        self._server: Any = None

    async def start(self) -> int:
        """Returns the port. Raises InputError when it cannot listen there, or when the extra `keda`
        is not installed.
        """
        try:
            import grpc

            from equipoise.worker.keda_messages import MESSAGES, SERVICE
        except ImportError:
            raise InputError(MISSING) from None
        self._server = server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        ref, metrics = MESSAGES["ScaledObjectRef"].FromString, MESSAGES["GetMetricsRequest"].FromString

        def unary(answer: Any, reads: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(answer, request_deserializer=reads, response_serializer=lambda each: each.SerializeToString())

        handlers = {
            "IsActive": unary(self._is_active, ref),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(
                self._stream_is_active, request_deserializer=ref, response_serializer=lambda each: each.SerializeToString()
            ),
            "GetMetricSpec": unary(self._metric_spec, ref),
            "GetMetrics": unary(self._metrics, metrics),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        place = f"{self._host}:{self._port}"
        try:
            credentials = None if self._tls is None else grpc.ssl_server_credentials([self._tls])
            port = server.add_insecure_port(place) if credentials is None else server.add_secure_port(place, credentials)
        except RuntimeError as error:
            raise InputError(f"http_host, scaler_port: cannot listen on {place} ({error}); name another port") from None
        await server.start()
        return int(port)

    async def stop(self) -> None:
        """Closes the port."""
        if self._server is not None:
            await self._server.stop(0.5)

    async def _is_active(self, request: Any, context: ServicerContext) -> Any:
        from equipoise.worker.keda_messages import MESSAGES

        return MESSAGES["IsActiveResponse"](result=await self._members(request, context) > 0)

    async def _stream_is_active(self, request: Any, context: ServicerContext) -> AsyncIterator[Any]:
        """Sends it at once, and whenever it changes."""
        from equipoise.worker.keda_messages import MESSAGES

        before: bool | None = None
        while True:
            is_active = await self._members(request, context) > 0
            if is_active != before:
                yield MESSAGES["IsActiveResponse"](result=is_active)
            before = is_active
            await asyncio.sleep(LOOK_S)

    async def _metric_spec(self, request: Any, context: ServicerContext) -> Any:
        import grpc

        from equipoise.worker.keda_messages import MESSAGES

        try:
            question_of(request.scalerMetadata)
        except InputError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        spec = MESSAGES["MetricSpec"](metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
        return MESSAGES["GetMetricSpecResponse"](metricSpecs=[spec])

    async def _metrics(self, request: Any, context: ServicerContext) -> Any:
        from equipoise.worker.keda_messages import MESSAGES

        members = await self._members(request.scaledObjectRef, context)
        value = MESSAGES["MetricValue"](metricName=request.metricName or METRIC, metricValue=members, metricValueFloat=float(members))
        return MESSAGES["GetMetricsResponse"](metricValues=[value])

    async def _members(self, ref: Any, context: ServicerContext) -> int:
        import grpc

        code = grpc.StatusCode
        try:
            group, policy = question_of(ref.scalerMetadata)
            return int((await self._ask(group, policy))["members"])
        except InputError as error:
            return int(await context.abort(code.INVALID_ARGUMENT, str(error)))
        except NoAnswerError as error:
            return int(await context.abort(code.NOT_FOUND if error.status == 404 else code.UNAVAILABLE, str(error)))
