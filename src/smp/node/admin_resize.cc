#include "smp/node/admin_resize.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "smp/job/cluster_records.h"
#include "smp/node/json_text.h"

namespace unreft::smp {
namespace {

using Json = nlohmann::ordered_json;

// More than any job has would not be written.
constexpr size_t kWithoutMax = 1 << 14;

std::optional<ResizeOrder> OrderOf(const nlohmann::json& arguments) {
  ResizeOrder order;
  const auto nodes = arguments.find("nodes");
  if (nodes != arguments.end()) {
    if (!nodes->is_number_unsigned()) return std::nullopt;
    order.set_nodes(nodes->get<uint64_t>());
  }
  const auto without = arguments.find("without");
  if (without != arguments.end()) {
    if (!without->is_array() || without->size() > kWithoutMax) return std::nullopt;
    for (const nlohmann::json& slot : *without) {
      if (!slot.is_number_unsigned()) return std::nullopt;
      order.add_without(slot.get<uint64_t>());
    }
  }
  const auto ordered = arguments.find("ordered_s");
  if (ordered != arguments.end()) {
    if (!ordered->is_number_unsigned()) return std::nullopt;
    order.set_ordered_s(ordered->get<uint64_t>());
  }
  return order;
}

std::optional<ResizeRequest> RequestOf(const nlohmann::json& arguments) {
  if (!arguments.is_object()) return std::nullopt;
  ResizeRequest request;
  const auto cancel = arguments.find("cancel");
  if (cancel != arguments.end()) {
    if (!cancel->is_boolean()) return std::nullopt;
    request.set_cancel(cancel->get<bool>());
  }
  if (!arguments.contains("nodes") && !arguments.contains("without")) return request;
  const std::optional<ResizeOrder> order = OrderOf(arguments);
  if (!order || request.cancel()) return std::nullopt;
  *request.mutable_order() = *order;
  return request;
}

Json OrderJson(const ResizeOrder& order) {
  Json json;
  json["nodes"] = nullptr;
  if (order.has_nodes()) json["nodes"] = order.nodes();
  json["without"] = std::vector<uint64_t>(order.without().begin(), order.without().end());
  json["ordered_s"] = order.ordered_s();
  return json;
}

Json ReplyJson(const ResizeReply& answer) {
  Json json;
  json["order"] = nullptr;
  if (answer.has_order()) json["order"] = OrderJson(answer.order());
  json["running"] = std::vector<uint64_t>(answer.running().begin(), answer.running().end());
  json["there"] = std::vector<uint64_t>(answer.there().begin(), answer.there().end());
  json["lost"] = std::vector<uint64_t>(answer.lost().begin(), answer.lost().end());
  json["committed"] = nullptr;
  if (answer.world() != 0) {
    json["committed"] = {{"timeline", NumberOf(Timeline{answer.timeline()})},
                         {"step", answer.step()}};
  }
  json["met"] = nullptr;
  if (answer.has_order()) json["met"] = answer.met();
  return json;
}

}  // namespace

Json ResizeJson(const TimelineRecord& timeline) {
  return timeline.has_resize() ? OrderJson(timeline.resize()) : Json(nullptr);
}

void AnswerResize(NodeState& state, const AdminRequest& request,
                  absl::AnyInvocable<void(AdminReply)> reply) {
  const std::optional<ResizeRequest> resize =
      RequestOf(nlohmann::json::parse(request.arguments, nullptr, /*allow_exceptions=*/false));
  if (!resize) {
    return reply(AdminReply{
        absl::InvalidArgumentError(fmt::format(
            "resize: an object with a number of nodes, with an array of nodes to run without, or "
            "with cancel, is needed, found '{}'",
            request.arguments)),
        ""});
  }
  state.coordinator->AskResize(
      *resize, [reply = std::move(reply)](absl::StatusOr<ResizeReply> answer) mutable {
        if (!answer.ok()) return reply(AdminReply{answer.status(), ""});
        reply(AdminReply{absl::OkStatus(), JsonText(ReplyJson(*answer))});
      });
}

}  // namespace unreft::smp
