"""What is used of Flower's inner names: another version that changes one of them fails here."""

import importlib.metadata
import inspect
from functools import reduce
from importlib import import_module

import pytest

pytest.importorskip("flwr")

CALLED = """
flwr.app ConfigRecord(config_dict, keep_input)
flwr.app ConfigRecord.inflate(object_content, children)
flwr.app Error(code, reason)
flwr.app Metadata(run_id, message_id, src_node_id, dst_node_id, reply_to_message_id, group_id,\
 created_at, ttl, message_type, src_task_id, dst_task_id)
flwr.app RecordDict(records, parameters_records, metrics_records, configs_records)
flwr.app.message make_message(metadata, content, error)
flwr.app.message remove_content_from_message(message)
flwr.common.serde message_to_proto(message)
flwr.supercore.control ControlHttpClient(base_url, interceptors, verify, timeout, retry_invoker)
flwr.supercore.control ControlHttpClient.ListRuns(self, request)
flwr.supercore.control ControlHttpClient.RegisterNode(self, request)
flwr.supercore.control ControlHttpClient.StartRun(self, request)
flwr.supercore.control ControlHttpClient.StopRun(self, request)
flwr.supercore.heartbeat HeartbeatSender(heartbeat_fn)
flwr.supercore.heartbeat HeartbeatSender.start(self)
flwr.supercore.heartbeat HeartbeatSender.stop(self)
flwr.supercore.inflatable.inflatable_object get_all_nested_objects(obj)
flwr.supercore.inflatable.inflatable_object get_object_id(object_content)
flwr.supercore.inflatable.inflatable_object get_object_tree(obj)
flwr.supercore.inflatable.inflatable_object no_object_id_recompute()
flwr.supercore.interceptors RuntimeTokenHttpInterceptor(token)
flwr.supercore.interceptors SuperExecAuthHttpInterceptor(master_secret, protected_methods)
flwr.supercore.primitives.asymmetric bytes_to_private_key(private_key_bytes)
flwr.supercore.primitives.asymmetric public_key_to_bytes(public_key)
flwr.supercore.runtime RuntimeHttpClient(base_url, interceptors, verify, timeout, retry_invoker)
flwr.supercore.runtime RuntimeHttpClient.AcquireTask(self, request)
flwr.supercore.runtime RuntimeHttpClient.ConfirmMessageReceived(self, request)
flwr.supercore.runtime RuntimeHttpClient.GetNodes(self, request)
flwr.supercore.runtime RuntimeHttpClient.PullMessages(self, request)
flwr.supercore.runtime RuntimeHttpClient.PullObject(self, request)
flwr.supercore.runtime RuntimeHttpClient.PullTaskInput(self, request)
flwr.supercore.runtime RuntimeHttpClient.PushMessages(self, request)
flwr.supercore.runtime RuntimeHttpClient.PushObject(self, request)
flwr.supercore.runtime RuntimeHttpClient.PushTaskOutput(self, request)
flwr.supercore.runtime RuntimeHttpClient.SendTaskHeartbeat(self, request)
flwr.supernode.fleet_http_client FleetHttpClient(base_url, interceptors, verify, timeout,\
 retry_invoker)
flwr.supernode.fleet_http_client FleetHttpClient.ActivateNode(self, request)
flwr.supernode.fleet_http_client FleetHttpClient.ConfirmMessageReceived(self, request)
flwr.supernode.fleet_http_client FleetHttpClient.DeactivateNode(self, request)
flwr.supernode.fleet_http_client FleetHttpClient.GetRun(self, request)
flwr.supernode.fleet_http_client FleetHttpClient.PullMessages(self, request)
flwr.supernode.fleet_http_client FleetHttpClient.PullObject(self, request)
flwr.supernode.fleet_http_client FleetHttpClient.PushMessages(self, request)
flwr.supernode.fleet_http_client FleetHttpClient.PushObject(self, request)
flwr.supernode.fleet_http_client FleetHttpClient.RegisterNode(self, request)
flwr.supernode.fleet_http_client FleetHttpClient.SendNodeHeartbeat(self, request)
flwr.supernode.fleet_http_client FleetHttpClient.UnregisterNode(self, request)
flwr.supernode.node_auth_http_interceptor NodeAuthHttpInterceptor(private_key, public_key)
"""

# Fields that are written or read.
SENT = """
control_pb2 StartRunRequest fab
control_pb2 StartRunResponse run_id
control_pb2 RegisterNodeRequest public_key
fab_pb2 Fab content
fleet_pb2 RegisterNodeFleetRequest public_key
fleet_pb2 ActivateNodeRequest public_key heartbeat_interval
fleet_pb2 ActivateNodeResponse node_id
fleet_pb2 DeactivateNodeRequest node_id
fleet_pb2 UnregisterNodeFleetRequest node_id
fleet_pb2 PullMessagesRequest node
fleet_pb2 PullMessagesResponse messages_list message_object_trees
fleet_pb2 PushMessagesRequest node messages_list message_object_trees
fleet_pb2 PushMessagesResponse objects_to_push session_id
heartbeat_pb2 SendNodeHeartbeatRequest node heartbeat_interval
message_pb2 Message metadata error
message_pb2 Metadata run_id message_id src_node_id dst_node_id reply_to_message_id created_at ttl\
 message_type
message_pb2 ObjectTree object_id children
message_pb2 PushObjectRequest node run_id session_id object_id object_content
message_pb2 PullObjectRequest node run_id object_id
message_pb2 PullObjectResponse object_found object_available object_content
message_pb2 ConfirmMessageReceivedRequest node run_id message_object_id
node_pb2 Node node_id
run_pb2 GetRunRequest node run_id
runtime_pb2 AcquireTaskRequest supported_task_types
runtime_pb2 AcquireTaskResponse task token
runtime_pb2 GetNodesRequest
runtime_pb2 GetNodesResponse nodes
runtime_pb2 PullTaskInputRequest
runtime_pb2 PullAppMessagesRequest message_ids
runtime_pb2 PullAppMessagesResponse messages_list message_object_trees
runtime_pb2 PushAppMessagesRequest messages_list message_object_trees
runtime_pb2 PushAppMessagesResponse message_ids objects_to_push session_id
runtime_pb2 PushTaskOutputRequest sub_status
runtime_pb2 SendTaskHeartbeatRequest
"""

OPTIONS = """
--host --port --isolation --superexec-auth-secret-file --insecure --ssl-ca-certfile --ssl-certfile
--ssl-keyfile --enable-supernode-auth
"""


def differences():
    """Lines of the tables above that Flower does not keep."""
    for line in CALLED.strip().splitlines():
        module, _, call = line.partition(" ")
        name, _, _ = call.partition("(")
        try:
            found = reduce(getattr, name.split("."), import_module(module))
            parameters = ", ".join(inspect.signature(found).parameters)
        except (ImportError, AttributeError) as error:
            yield f"{line}: {error}"
            continue
        if call != f"{name}({parameters})":
            yield f"{line}: got ({parameters})"
    for line in SENT.strip().splitlines():
        module, message, *fields = line.split()
        descriptor = getattr(import_module(f"flwr.proto.{module}"), message, None)
        found = set() if descriptor is None else set(descriptor.DESCRIPTOR.fields_by_name)
        if descriptor is None or not set(fields) <= found:
            yield f"{line}: got {found}"
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode

    numbers = SUPERLINK_NODE_ID, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.NODE_UNAVAILABLE
    if numbers != (1, 2, 5):
        yield f"numbers of the coordinator and of errors: got {numbers}"


def test_flower_has_the_names_that_are_used():
    found = list(differences())
    version = importlib.metadata.version("flwr")
    message = f"flwr {version} differs from what is used of it (pin it in pyproject.toml): "
    assert not found, message + "; ".join(found)


@pytest.mark.processes
def test_the_superlink_has_the_options_that_are_used():
    program = import_module("flwr.superlink.cli.flower_superlink")
    parser = program._parse_args_run_superlink()
    assert set(OPTIONS.split()) <= set(parser._option_string_actions)
