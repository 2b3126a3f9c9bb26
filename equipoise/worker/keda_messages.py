"""The messages of KEDA's external scalers (package ``externalscaler`` of KEDA 2, its
externalscaler.proto), declared here, so that no code is generated.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]  # it has no types

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"
_FIELD = descriptor_pb2.FieldDescriptorProto
_TEXT, _WHOLE, _FLOAT, _BOOL = _FIELD.TYPE_STRING, _FIELD.TYPE_INT64, _FIELD.TYPE_DOUBLE, _FIELD.TYPE_BOOL
_DECLARED: dict[str, tuple[tuple[str, Any], ...]] = {
    "ScaledObjectRef": (("name", _TEXT), ("namespace", _TEXT), ("scalerMetadata", "ScaledObjectRef.ScalerMetadataEntry")),
    "IsActiveResponse": (("result", _BOOL),),
    "MetricSpec": (("metricName", _TEXT), ("targetSize", _WHOLE), ("targetSizeFloat", _FLOAT)),
    "GetMetricSpecResponse": (("metricSpecs", "MetricSpec"),),
    "GetMetricsRequest": (("scaledObjectRef", "ScaledObjectRef"), ("metricName", _TEXT)),
    "MetricValue": (("metricName", _TEXT), ("metricValue", _WHOLE), ("metricValueFloat", _FLOAT)),
    "GetMetricsResponse": (("metricValues", "MetricValue"),),
}
"""Message -> its fields, numbered from 1: name, and type or the message that it is of."""
_REPEATED = {"scalerMetadata", "metricSpecs", "metricValues"}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="equipoise/externalscaler.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _DECLARED.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, 1):
            label = _FIELD.LABEL_REPEATED if field in _REPEATED else _FIELD.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = _FIELD.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                added.type = kind
        if name == "ScaledObjectRef":  # a map is a repeated message of keys and values
            entry = message.nested_type.add(name="ScalerMetadataEntry")
            entry.options.map_entry = True
            for number, field in enumerate(("key", "value"), 1):
                entry.field.add(name=field, number=number, type=_TEXT, label=_FIELD.LABEL_OPTIONAL)
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
MESSAGES: dict[str, Any] = {name: message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _DECLARED}
"""Name of a message -> its class."""
