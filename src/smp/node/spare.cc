#include "smp/node/spare.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/job/kept_records.h"
#include "smp/job/recorded.h"
#include "smp/node/json_text.h"

namespace unreft::smp {
Spare::Spare(NodeSeams seams, NodeOptions options)
    : seams_(seams),
      options_(std::move(options)),
      place_(options_.place.value_or(options_.node.value)),
      store_(*seams.kv, seams.executor, seams.random, seams.log, options_.job,
             [this] { Follow(); }),
      settings_(*seams.kv, seams.executor, seams.log, options_, seams.transport->address(),
                [this] { Follow(); }),
      registration_(
          *seams.kv, seams.executor, seams.log, store_.SpareKey(place_), options_.presence_ttl,
          // An earlier process of ours; the lock on the run directory says it is dead.
          [](const std::string&) { return true; }, [this] { Register(); }) {}

Spare::~Spare() = default;

void Spare::Start(RandomId boot_id, absl::AnyInvocable<void(absl::StatusOr<NodeSlot>)> done) {
  boot_id_ = boot_id;
  done_ = std::move(done);
  opening_ = true;
  check_ = std::make_unique<SettingsCheck>(seams_, options_);
  check_->Start([this](absl::Status status) {
    if (!status.ok()) return End(std::move(status));
    check_.reset();
    OpenRecord();
  });
}

void Spare::Leave(absl::AnyInvocable<void()> done) {
  done_ = nullptr;  // it registers no more
  registration_.Release(std::move(done));
}

void Spare::OpenRecord() {
  opening_ = true;
  NodeRecord::Open(seams_.segments, seams_.records, seams_.random, seams_.log,
                   MemoryPrefix(options_) + "node", boot_id_,
                   lifetime_.Bind([this](auto record) { OnRecord(std::move(record)); }));
}

void Spare::OnRecord(absl::StatusOr<std::unique_ptr<NodeRecord>> record) {
  opening_ = false;
  if (!record.ok()) return End(record.status());
  record_ = *std::move(record);
  if (is_clean_) return Follow();
  store_.Start();
}

std::optional<NodeSlot> Spare::SlotInView() const {
  for (const ViewMember& member : store_.state().view.value.members()) {
    if (member.incarnation() == AsBytes(record_->incarnation())) return NodeSlot{member.slot()};
  }
  return std::nullopt;
}

// A view that names another memory for the slot, and that one lives, has given ours up. Without a
// view the store has lost it; then, or if the other is lost, ours may be the only one.
Spare::Fate Spare::FateOfMemory() const {
  const std::optional<NodeSlot> slot = record_->taken_slot();
  if (!slot) return Fate::kGivenUp;
  const meta::JobState& state = store_.state();
  const PresenceRecord* const present = state.PresenceOf(*slot);
  const bool is_free =
      present == nullptr || present->incarnation() == AsBytes(record_->incarnation());
  if (!state.view.exists()) return is_free ? Fate::kComesBack : Fate::kUndecided;
  if (!is_free) return Fate::kGivenUp;
  const ViewMember* const member = FindMember(state.view.value, *slot);
  if (member == nullptr) return Fate::kGivenUp;
  return member->lost() ? Fate::kComesBack : Fate::kUndecided;
}

void Spare::Follow() {
  if (done_ == nullptr || opening_ || !store_.ready()) return;
  settings_.Follow(store_.state(), record_->view() != 0);
  if (!settings_.refusal().ok()) return End(settings_.refusal());
  if (!settings_.agreed()) return;
  if (const std::optional<NodeSlot> slot = SlotInView()) {
    seams_.log.Info("spare {} is node {} by view {}", place_, *slot,
                    store_.state().view.value.number());
    record_->SetTakenSlot(*slot);
    return End(*slot);
  }
  if (is_clean_) return Register();
  if (KeptRecords::IsForAnotherJob(seams_.segments,
                                   MemoryPrefix(options_) + std::string(kRecordsSegment),
                                   store_.state().timeline.value)) {
    return End(absl::FailedPreconditionError(fmt::format(
        "spare {}: what lies here is of another job of this name than that which the meta store "
        "has: remove it by 'unreft down', or start this daemon with the meta store of its job "
        "(--meta-endpoints)",
        place_)));
  }
  switch (FateOfMemory()) {
    case Fate::kComesBack: {
      const NodeSlot slot = *record_->taken_slot();
      seams_.log.Warn(
          "spare {} was node {}, and no other is by view {}: it comes back with its "
          "memory",
          place_, slot, store_.state().view.value.number());
      return End(slot);
    }
    case Fate::kUndecided:
      seams_.log.WarnEvery("undecided", std::chrono::seconds(10), seams_.executor.Now(),
                           "spare {} was node {}: it waits until a view says whether it still is",
                           place_, *record_->taken_slot());
      return;
    case Fate::kGivenUp:
      break;
  }
  if (absl::Status status = Forget(); !status.ok()) return End(status);
  is_clean_ = true;
  if (absl::StatusOr<MemoryCapacity> capacity = seams_.segments.Capacity(); capacity.ok()) {
    memory_bytes_ = std::min(capacity->segments_free, capacity->ram_available);
  }
  OpenRecord();
}

// What lies here is of a memory that the job has given up, or of none.
absl::Status Spare::Forget() {
  absl::StatusOr<std::vector<SegmentInfo>> left = seams_.segments.List(MemoryPrefix(options_));
  if (!left.ok()) return left.status();
  for (const SegmentInfo& segment : *left) {
    if (absl::Status status = seams_.segments.Remove(segment.name); !status.ok()) return status;
  }
  record_.reset();  // only now: another daemon may wait for its lock
  return absl::OkStatus();
}

// Of the same number, and not an earlier process of this daemon.
const PresenceRecord* Spare::Other() const {
  const auto found = store_.state().spares.find(place_);
  if (found == store_.state().spares.end()) return nullptr;
  const PresenceRecord& presence = found->second.value.presence();
  const bool is_ours = presence.incarnation() == AsBytes(record_->incarnation()) ||
                       presence.address() == seams_.transport->address();
  return is_ours ? nullptr : &presence;
}

// It would take the other's registration, and the job would have a spare less than it was given.
bool Spare::IsAlone() {
  const PresenceRecord* const other = Other();
  if (other == nullptr || other->address() == dead_address_) return true;
  if (std::exchange(is_probing_, true)) return false;
  const std::string& address = other->address();
  seams_.transport->Call(
      address, "spare", "", options_.presence_ttl,
      lifetime_.Bind([this, address](const absl::StatusOr<std::string>& reply) {
        is_probing_ = false;
        if (!reply.ok() && !absl::IsUnimplemented(reply.status())) dead_address_ = address;
        const PresenceRecord* const now = Other();
        if (done_ == nullptr || now == nullptr || now->address() != address ||
            address == dead_address_) {
          return Follow();
        }
        End(absl::FailedPreconditionError(fmt::format(
            "place {} of job {} is that of the spare at {} already: give this one a number from {} "
            "on (--node) that no other daemon has",
            place_, options_.job, address, options_.nodes)));
      }));
  return false;
}

void Spare::Register() {
  if (done_ == nullptr || record_ == nullptr || !is_clean_ || !IsAlone()) return;
  SpareRecord record;
  PresenceRecord& presence = *record.mutable_presence();
  presence.set_incarnation(AsBytes(record_->incarnation()));
  presence.set_session(record_->session().value);
  presence.set_address(seams_.transport->address());
  presence.set_failure_domain(options_.failure_domain);
  presence.set_place(place_);
  // The leader hands the lease on with the presence: none yet, and it is not chosen.
  if (registration_.held()) {
    record.set_lease(static_cast<int64_t>(registration_.lease().value));
  }
  record.set_memory_bytes(memory_bytes_);
  registration_.Hold(record.SerializeAsString());
}

void Spare::End(absl::StatusOr<NodeSlot> result) {
  if (done_ == nullptr) return;  // it is about to leave
  seams_.executor.Post(
      lifetime_.Bind([done = std::exchange(done_, nullptr), result = std::move(result)]() mutable {
        done(std::move(result));
      }));
}

// --- the local session ---

void Spare::Accept(std::unique_ptr<Channel> channel, PeerIdentity) {
  // Each asks one thing: the oldest has had its answer.
  if (channels_.size() >= options_.sessions_max) {
    channels_.front()->Close();
    channels_.pop_front();
  }
  const auto it = channels_.insert(channels_.end(), std::move(channel));
  (*it)->Start([this, it](const Frame& frame) { OnFrame(**it, frame); },
               [this, it](absl::Status) { channels_.erase(it); });
}

void Spare::OnFrame(Channel& channel, const Frame& frame) {
  if (static_cast<FrameType>(frame.type) == FrameType::kAdminRequest) {
    absl::StatusOr<AdminRequest> request = FromFrame<AdminRequest>(frame);
    if (request.ok()) return channel.Send(ToFrame(Answer(*request)));
  }
  channel.Send(ToFrame(Refused{
      absl::UnavailableError(fmt::format("spare {}: it has no node slot yet", place_)), true}));
}

AdminReply Spare::Answer(const AdminRequest& request) const {
  if (request.verb != "status") {
    return {absl::UnavailableError(
                fmt::format("spare {}: it has no node slot yet, it answers 'status'", place_)),
            ""};
  }
  nlohmann::ordered_json json{{"job", options_.job},
                              {"node", nullptr},
                              {"place", place_},
                              {"spare", true},
                              {"registered", registration_.held()},
                              {"version", options_.software_version},
                              {"pid", seams_.processes.Self().pid},
                              {"session", record_ == nullptr ? 0 : record_->session().value},
                              {"committed", nullptr},
                              {"bytes", 0},
                              {"ranks", nlohmann::ordered_json::array()},
                              {"slots", nlohmann::ordered_json::array()}};
  return {absl::OkStatus(), JsonText(json)};
}

}  // namespace unreft::smp
