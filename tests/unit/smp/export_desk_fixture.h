// A node of a job whose desk of durable copies is asked, and whose drain is the test. Node 1 leads,
// and answers what the test says.
#pragma once

#include <absl/strings/escaping.h>
#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "smp/node/export_desk.h"
#include "tests/unit/smp/member_fixture.h"

namespace unreft::smp {

inline constexpr Version kVersion{Timeline{(uint64_t{2} << 32) | 9}, Step{40}};

class PlayedDrain : public DrainProcess {
 public:
  absl::Status Start(const std::string& order,
                     absl::AnyInvocable<void(const std::string& line)> on_line,
                     absl::AnyInvocable<void()> on_end) override {
    if (!refusal.ok()) return refusal;
    UNREFT_CHECK(orders.emplace_back().ParseFromString(order));
    on_line_ = std::move(on_line);
    on_end_ = std::move(on_end);
    return absl::OkStatus();
  }
  void Stop() override { ++stops; }

  void Say(const CopyPartReply& reply) {
    on_line_(absl::BytesToHexString(reply.SerializeAsString()));
  }
  void End() { on_end_(); }

  absl::Status refusal;
  std::vector<CopyPartRequest> orders;
  int stops = 0;

 private:
  absl::AnyInvocable<void(const std::string&)> on_line_;
  absl::AnyInvocable<void()> on_end_;
};

class ExportDeskTest : public MemberFixture {
 protected:
  ExportDeskTest() {
    options_.nodes = 2;
    leader_ = &Join(1, true);
    StartMember();
    InTurnOf(*process_, [this] { MakeState(); });
    InTurnOf(*leader_->executor, [this] {
      leader_->peers->Answer<PinRequest, PinReply>(
          "pins", [this](NodeSlot, PinRequest request, auto done) { done(OnPins(request)); });
      leader_->peers->Answer<CopyPartRequest, CopyPartReply>(
          "copy-part", [this](NodeSlot, CopyPartRequest request, auto done) {
            asked_.push_back(request);
            if (!silent_) done(OnPart(request));
          });
    });
    held_.set_world(2);
    held_.add_ranks(0);
    held_.add_ranks(1);
    said_.set_is_running(true);
    InTurnOf(*process_, [this] { desk_.emplace(*state_, *member_, NoBlocks, &drain_); });
    Seed();
    PutTimeline(kVersion.timeline);
  }
  ~ExportDeskTest() override {
    process_->Kill();
    desk_.reset();
    state_.reset();
  }

  // The only one that the job has had.
  void PutTimeline(Timeline timeline) {
    TimelineRecord record;
    record.add_chain()->set_timeline(timeline.value);
    Put("timeline", record);
  }
  // Of this node's own.
  static void NoBlocks(const ReadRequest&, uint64_t, SlabSource::ReadDone done) {
    done(absl::NotFoundError("this node has no blocks"));
  }
  void MakeState() {
    state_.emplace(
        NodeState{NodeSeams{*process_, pool_, random_, segments_, *records_, processes_, log_}});
    state_->options = options_;
    state_->memory = std::make_unique<SegmentPool>(
        SegmentPool::Seams{*process_, pool_, segments_, log_}, options_);
    state_->slots =
        std::make_unique<SlotStore>(SlotStore::Seams{*process_, *state_->memory, processes_, log_},
                                    options_, boot_id_, random_.NextId(), ProcessNumber{1}, [] {});
  }
  absl::StatusOr<PinReply> OnPins(const PinRequest& request) {
    pins_.push_back(request);
    if (!request.unpin() && !pin_refusal_.ok()) return pin_refusal_;
    PinReply reply;
    Pin& pin = *reply.add_pins();
    pin.set_owner(request.owner());
    pin.set_timeline(kVersion.timeline.value);
    pin.set_step(kVersion.step.value);
    return reply;
  }
  absl::StatusOr<CopyPartReply> OnPart(const CopyPartRequest& request) const {
    if (request.what() == CopyPartRequest::LOOK) return held_;
    if (request.what() == CopyPartRequest::START && !start_refusal_.ok()) return start_refusal_;
    return said_;
  }

  AdminReply Ask(const std::string& verb, const std::string& arguments = "{}") {
    std::optional<AdminReply> reply;
    InTurnOf(*process_, [&] {
      desk_->Answer({verb, arguments}, [&](AdminReply answer) { reply = std::move(answer); });
    });
    Settle(std::chrono::seconds(1));
    return reply.value_or(AdminReply{absl::UnknownError("no answer"), ""});
  }
  AdminReply Export() { return Ask("export", R"({"dir":"/copies/40","map":["model.=m."]})"); }
  nlohmann::json Status() { return nlohmann::json::parse(Ask("export-status").result); }
  void DrainSays(const CopyPartReply& reply) {
    InTurnOf(*process_, [&] { drain_.Say(reply); });
  }
  std::vector<int> Whats() const {
    std::vector<int> whats;
    for (const CopyPartRequest& request : asked_) {
      if (request.what() != CopyPartRequest::ASK) whats.push_back(request.what());
    }
    return whats;
  }
  bool IsUnpinned() const { return !pins_.empty() && pins_.back().unpin(); }

  std::optional<NodeState> state_;
  PlayedDrain drain_;
  std::vector<PinRequest> pins_;
  absl::Status pin_refusal_;
  absl::Status start_refusal_;
  std::vector<CopyPartRequest> asked_;  // of node 1
  CopyPartReply held_;
  CopyPartReply said_;
  bool silent_ = false;
  std::optional<ExportDesk> desk_;
};

}  // namespace unreft::smp
