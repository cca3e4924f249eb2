#include "smp/node/part_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/text.h"

namespace unreft::smp {
namespace {

constexpr std::chrono::milliseconds kAskEvery(500);
constexpr int kSilentMax = 10;  // so often one in a row does not answer

}  // namespace

PartWatch::PartWatch(NodeState& state, Peers& peers, std::string method, std::string id,
                     Duration stall_max, Orders orders, Events events)
    : state_(state),
      peers_(peers),
      method_(std::move(method)),
      id_(std::move(id)),
      stall_max_(stall_max),
      orders_(orders),
      events_(std::move(events)) {}

PartWatch::~PartWatch() { End(); }

void PartWatch::Call(NodeSlot node, const CopyPartRequest& request,
                     absl::AnyInvocable<void(absl::StatusOr<CopyPartReply>)> done) {
  peers_.Ask<CopyPartReply>(node, method_, request, state_.options.call_timeout,
                            lifetime_.Bind(std::move(done)));
}

void PartWatch::Begin(const std::map<NodeSlot, CopyPartRequest>& orders) {
  is_asking_ = true;
  moved_ = state_.seams.executor.Now();
  for (const auto& [node, order] : orders) said_[node].set_is_running(true);
  if (orders_ == Orders::kAgain) unanswered_ = orders;
  for (const auto& [node, order] : orders) {
    Call(node, order, [this, node = node](const absl::StatusOr<CopyPartReply>& reply) {
      if (orders_ == Orders::kAgain) return OnSaid(node, reply);
      if (!reply.ok()) Fail(node, reply.status());
    });
  }
  AskLater();
}

void PartWatch::AskLater() {
  timer_ = state_.seams.executor.After(kAskEvery, lifetime_.Bind([this] {
    if (!is_asking_ || !events_.before_asking()) return;
    if (state_.seams.executor.Now() - moved_ >= stall_max_) {
      End();
      return events_.on_failed(absl::UnavailableError(
          fmt::format("nothing has moved for {} s: the storage does not answer",
                      std::chrono::duration_cast<std::chrono::seconds>(stall_max_).count())));
    }
    AskAll();
    AskLater();
  }));
}

void PartWatch::AskAll() {
  CopyPartRequest request;
  request.set_what(CopyPartRequest::ASK);
  request.set_id(id_);
  for (const auto& [node, said] : said_) {
    if (said.is_done()) continue;
    const auto order = unanswered_.find(node);
    Call(node, order == unanswered_.end() ? request : order->second,
         [this, node = node](const auto& reply) { OnSaid(node, reply); });
  }
}

void PartWatch::OnSaid(NodeSlot node, const absl::StatusOr<CopyPartReply>& reply) {
  if (!is_asking_) return;
  if (!reply.ok()) {
    if (absl::IsNotFound(reply.status())) return Fail(node, reply.status());
    return OnSilent(node, reply.status());
  }
  unanswered_.erase(node);
  silent_.erase(node);
  CopyPartReply& before = said_[node];
  if (before.written() != reply->written() || before.is_done() != reply->is_done()) {
    moved_ = state_.seams.executor.Now();
  }
  before = *reply;
  if (!reply->is_running() && !reply->is_done()) {
    const std::string error = CleanText(reply->error(), kTextBytesMax);
    return Fail(node,
                reply->is_damaged() ? absl::DataLossError(error) : absl::UnavailableError(error));
  }
  events_.on_said();
}

void PartWatch::OnSilent(NodeSlot node, const absl::Status& why) {
  if (++silent_[node] < kSilentMax) return;
  End();
  events_.on_failed(absl::UnavailableError(
      fmt::format("node {} does not answer: {}", node, std::string(why.message()))));
}

void PartWatch::Fail(NodeSlot node, const absl::Status& why) {
  if (!is_asking_) return;
  End();
  events_.on_failed(
      absl::Status(why.code(), fmt::format("node {}: {}", node, std::string(why.message()))));
}

bool PartWatch::AreAllDone() const {
  return std::ranges::all_of(said_, [](const auto& of) { return of.second.is_done(); });
}

void PartWatch::End() {
  is_asking_ = false;
  state_.seams.executor.Cancel(std::exchange(timer_, TimerId::kNone));
}

void PartWatch::Stop() {
  End();
  CopyPartRequest request;
  request.set_what(CopyPartRequest::STOP);
  request.set_id(id_);
  for (const auto& [node, said] : said_) Call(node, request, [](const auto&) {});
}

}  // namespace unreft::smp
