// LoadPart: what one node does to bring a durable copy back: makes room for its ranks' slabs, has
// the drain fill them, and seals them.
//
//   describe (the drain: how large are they?) ──▶ provide slots ──▶ fill (the drain) ──▶ seal
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/lifetime.h"
#include "smp/core/drain_process.h"
#include "smp/desk/node_state.h"
#include "smp/job/peers.h"

namespace unreft::smp {

inline constexpr char kLoadPartMethod[] = "load-part";

// Single-threaded on the node's executor.
class LoadPart {
 public:
  // Others' questions are answered from now on. `on_sealed`: this node holds more than it did. All
  // outlive this; without a drain nothing is loaded.
  LoadPart(NodeState& state, Peers& peers, DrainProcess* drain,
           absl::AnyInvocable<void()> on_sealed);
  ~LoadPart();

  // Ends what nobody asks for any more, as ExportPart does. To be called every second.
  void StopUnasked();

 private:
  struct Slab {
    CopySlabSize size;
    Slot* slot = nullptr;  // null until there is a free one
    std::optional<LoadedSlab> loaded;
  };
  // The load that is under way, or was last.
  struct Load {
    CopyPartRequest order;
    CopyPartReply said;
    Time asked{};  // when somebody last asked how far it is
    bool is_stopped = false;
    bool is_draining = false;  // the drain works for it, and may write to the slots
    std::map<Rank, Slab> slabs;

    Version version() const { return {Timeline{order.timeline()}, Step{order.step()}}; }
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<CopyPartReply>)>;

  void OnRequest(CopyPartRequest request, Done done);
  absl::Status Check(const CopyPartRequest& order) const;
  bool IsOf(const std::string& id) const;
  CopyPartReply Said(const std::string& id);
  void Take(CopyPartRequest order);
  void Begin(CopyPartRequest order);
  void Stop();
  void Describe();
  void OnDescribed(const CopyPartReply& last);
  void ProvideAll();
  // Ok: there is a slot, or will be.
  absl::Status Provide(Rank rank, const Slab& slab);
  bool FreeOne(Rank rank);
  void TakeAll();
  void Fill();
  void OnFilled(const CopyPartReply& last);
  absl::Status Seal(Rank rank, Slab& slab);
  void Fail(const std::string& why, bool is_damaged = false);
  // Once the drain is done with what it does for others; `on_end` is told the last line.
  using EndOfDrain = void (LoadPart::*)(const CopyPartReply& last);
  void RunDrain(CopyPartRequest order, EndOfDrain on_end);

  NodeState& state_;
  DrainProcess* const drain_;
  absl::AnyInvocable<void()> on_sealed_;
  std::optional<Load> load_;
  // Waits for the end of the load before, which nobody has a use for any more.
  std::optional<CopyPartRequest> next_;
  TimerId timer_ = TimerId::kNone;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
