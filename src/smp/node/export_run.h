// ExportRun: one durable copy, from the daemon that runs it: pins the version, learns which node
// has which rank's slab, has each node's drain write them, and watches over all until the copy is
// complete or one has failed.
//
//   pin ──▶ look (who has what?) ──▶ start ──▶ ask, again and again ──▶ unpin
//
// What was lost with a node is decoded first, by nodes that are there.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "smp/desk/node_state.h"
#include "smp/job/member.h"
#include "smp/node/part_watch.h"

namespace unreft::smp {

// What is to be copied, and where to.
struct ExportWish {
  std::string directory;     // of a copy of the job's own: that in which it is to have one
  uint64_t step = 0;         // 0: what is committed
  uint64_t bytes_per_s = 0;  // by each node; 0: as fast as the storage is
  uint64_t keep = 0;         // complete copies of the job's own, of which this is one; 0: it is not
  std::vector<std::string> map;
  CopyOrder::Format format = CopyOrder::DCP;
};

// Single-threaded on the node's executor.
class ExportRun {
 public:
  // `ended` is called once. All outlive this, which ends nothing when it is destroyed.
  ExportRun(NodeState& state, Member& member, ExportWish wish, absl::AnyInvocable<void()> ended);

  void Begin();
  // Of one that is under way.
  void Cancel() { Fail("it was cancelled"); }
  // What was given up may have been completed by then, as this node's drain says, which leads.
  void OnPartEnded(const CopyPartReply& said);

  bool IsUnderWay() const { return phase_ != Phase::kDone && !HasFailed(); }
  bool HasFailed() const { return phase_ == Phase::kFailed; }
  bool IsTheJobsOwn() const { return wish_.keep != 0; }
  const std::string& id() const { return id_; }
  const std::string& directory() const { return wish_.directory; }
  Version version() const { return version_; }
  Time began() const { return began_; }
  const std::string& error() const { return error_; }
  // Of one that is complete.
  const CopyFinished& finished() const;
  // As "export-status" says it.
  nlohmann::ordered_json Describe() const;

 private:
  enum class Phase { kPinning, kLooking, kWriting, kDone, kFailed };

  std::string Owner() const;
  void Pin(absl::AnyInvocable<void(absl::Status)> done);
  void OnPinned(const absl::Status& status);
  void PinAgain();
  void Unpin(absl::AnyInvocable<void()> done);
  void Look();
  void OnLooked();
  bool PlanDecoding(const std::set<uint64_t>& lost);
  void StartAll();
  CopyPartRequest OrderFor(NodeSlot node, const std::map<uint64_t, NodeSlot>& homes) const;
  CopyLead LeadOf(const std::set<NodeSlot>& writers) const;
  bool MayGoOn();
  void CheckEnd();
  void Fail(const std::string& why);
  void End();

  NodeState& state_;
  Member& member_;
  ExportWish wish_;
  absl::AnyInvocable<void()> ended_;
  Phase phase_ = Phase::kPinning;
  std::string id_;
  Version version_;
  uint64_t world_ = 0;
  std::map<NodeSlot, std::set<uint64_t>> ranks_;  // that each node has
  // Of a version that is not whole: the ranks whose slabs each node decodes, and who had them.
  std::map<NodeSlot, std::set<uint64_t>> decode_;
  std::vector<CopyHolder> holders_;
  std::set<NodeSlot> awaited_;                    // that are yet to answer
  PartWatch watch_;                               // of those that write
  std::string error_;
  Time began_;
  std::optional<Time> end_;
  Time pinned_{};
  Lifetime lifetime_;
};

}  // namespace unreft::smp
