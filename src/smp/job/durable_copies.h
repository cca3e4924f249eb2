// DurableCopies: the leader's way to the copies of the job that outlive all its memory
// (docs/durable_copy.md): which there are, and bringing one back.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/copy.pb.h>

#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "recovery/timeline.h"

namespace unreft::smp {

// A complete one.
struct DurableCopy {
  std::string directory;
  CopyOrder order;  // empty: it cannot be read

  Version version() const { return {Timeline{order.timeline()}, Step{order.step()}}; }
  // The run that it is of: by the timeline that its fresh start opened.
  uint64_t run() const {
    if (order.run() != 0 || order.chain().empty()) return order.run();
    return order.chain(0).timeline();
  }
  // The timelines that it knows of; its own version's is among them.
  recovery::TimelineChain chain() const {
    std::vector<recovery::TimelineOrigin> origins;
    for (const CopyTimeline& of : order.chain()) {
      origins.push_back(
          {Timeline{of.timeline()}, {Timeline{of.parent_timeline()}, Step{of.parent_step()}}});
    }
    return recovery::TimelineChain(std::move(origins));
  }
};

// Used in turns of the node's executor, and calls back in later ones.
class DurableCopies {
 public:
  virtual ~DurableCopies() = default;

  // Those of the job, the newest first.
  using Found = absl::AnyInvocable<void(absl::StatusOr<std::vector<DurableCopy>>)>;
  virtual void Search(Found done) = 0;

  // Has each node load its ranks' slabs, which are sealed in its memory when `done` is told OK, and
  // in its reports soon after. DataLoss when the copy is not as it was written. A load that is
  // under way is given up for the next one.
  using Loaded = absl::AnyInvocable<void(absl::Status)>;
  virtual void Load(const DurableCopy& copy, std::map<NodeSlot, std::vector<Rank>> homes,
                    Loaded done) = 0;

  // Nobody needs what is under way any more, which ends without a word.
  virtual void Cancel() = 0;
};

}  // namespace unreft::smp
