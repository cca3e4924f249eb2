// Spare: a daemon that waits to take the slot of a node that is lost.
//
//   registers "spare/PLACE" ──▶ the leader's Txn: the slot's member is this memory now, and the
//                               presence "spare/PLACE" becomes "node/SLOT"
//   reads the view ◀──────────  with its incarnation in it: it is that slot's node
//
// It is in no group and holds nothing. Who it becomes is decided by the view, so a spare that is
// killed at any moment finds out when it starts again. What an earlier process of it left is
// removed if it never was in a view, or if another memory lives in its slot; a view that was lost
// or went back says neither, and the slot that the memory remembers is taken again.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>

#include <list>
#include <memory>
#include <optional>
#include <string>

#include "base/channel.h"
#include "base/lifetime.h"
#include "meta/job_store.h"
#include "meta/leased_key.h"
#include "smp/core/node_options.h"
#include "smp/desk/node_state.h"
#include "smp/job/node_record.h"
#include "smp/node/settings_check.h"

namespace unreft::smp {

// Single-threaded on its executor, constructed and destroyed in a turn of it.
class Spare {
 public:
  // `seams` has kv and transport; its options.place is this daemon's own number.
  Spare(NodeSeams seams, NodeOptions options);
  ~Spare();

  // `done` once, in a turn of its own: the slot that this daemon has by now, or why it cannot wait.
  // The spare does nothing more then, but keeps the slot's presence until it is destroyed.
  void Start(RandomId boot_id, absl::AnyInvocable<void(absl::StatusOr<NodeSlot>)> done);

  // As of a Node.
  void Leave(absl::AnyInvocable<void()> done);

  // Answers the CLI's "status"; trainers are refused.
  void Accept(std::unique_ptr<Channel> channel, PeerIdentity peer);

 private:
  void OpenRecord();
  void OnRecord(absl::StatusOr<std::unique_ptr<NodeRecord>> record);
  void Follow();
  absl::Status Forget();
  const PresenceRecord* Other() const;
  bool IsAlone();
  void Register();
  void End(absl::StatusOr<NodeSlot> result);
  std::optional<NodeSlot> SlotInView() const;
  // Of what an earlier process left, where the view does not name it.
  enum class Fate { kGivenUp, kComesBack, kUndecided };
  Fate FateOfMemory() const;
  void OnFrame(Channel& channel, const Frame& frame);
  AdminReply Answer(const AdminRequest& request) const;

  NodeSeams seams_;
  const NodeOptions options_;
  const uint64_t place_;
  RandomId boot_id_{};
  absl::AnyInvocable<void(absl::StatusOr<NodeSlot>)> done_;
  std::unique_ptr<NodeRecord> record_;
  bool is_clean_ = false;  // nothing of an earlier process is left
  bool opening_ = false;
  bool is_probing_ = false;
  std::string dead_address_;   // of another of the same number, where nobody of the job answers
  uint64_t memory_bytes_ = 0;  // available when it was clean
  std::unique_ptr<SettingsCheck> check_;  // while it starts
  meta::JobStore store_;
  JobSettings settings_;
  meta::LeasedKey registration_;
  std::list<std::unique_ptr<Channel>> channels_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
