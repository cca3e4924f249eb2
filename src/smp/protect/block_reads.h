// BlockReads: the reads of blocks that one reader has on their way, from other nodes and from this
// one.
//
// What this node has itself is copied straight out of its memory, without the transport. Such a
// read ends by its timeout, is cancelled, and holds its source until it has landed like any other.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/work_pool.h"
#include "smp/job/peers.h"
#include "smp/protect/slab_source.h"
#include "transport/transport.h"

namespace unreft::smp {

// Single-threaded on the node's executor; what is this node's is copied on the work pool.
class BlockReads {
 public:
  // What this node answers to a read, inline or later: as SlabServer::Read.
  using Own =
      std::function<void(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done)>;
  // `header`: of one block.
  using Done = absl::AnyInvocable<void(absl::StatusOr<ReadHeader> header)>;

  // All references outlive this. Without `own`, whose blocks are all on other nodes.
  BlockReads(Executor& executor, WorkPool& pool, Peers& peers, Duration timeout, Own own = nullptr)
      : executor_(executor), pool_(pool), peers_(peers), timeout_(timeout), own_(std::move(own)) {}
  // Nothing is called back after it.
  ~BlockReads();
  BlockReads(const BlockReads&) = delete;
  BlockReads& operator=(const BlockReads&) = delete;

  // Of one block. `done` runs once, never inline; what it holds is kept until the last touch of
  // `into`. DataLoss for a header that is not one block's.
  void Read(NodeSlot from, const ReadRequest& request, std::span<std::byte> into, Done done);

  // Lets all of them end soon, with Cancelled unless they have landed.
  void Cancel();

 private:
  struct OwnRead {
    std::span<std::byte> into;
    Done done;
    TimerId timeout = TimerId::kNone;
    bool is_landing = false;
  };

  void ReadOwn(const ReadRequest& request, std::span<std::byte> into, Done done);
  void OnOwnSource(const std::shared_ptr<OwnRead>& read, absl::StatusOr<ReadSource> source);
  void EndOwn(const std::shared_ptr<OwnRead>& read, absl::StatusOr<ReadHeader> result);
  void EndOwnSoon(const std::shared_ptr<OwnRead>& read, absl::Status status);

  Executor& executor_;
  WorkPool& pool_;
  Peers& peers_;
  const Duration timeout_;
  const Own own_;
  std::set<TransferId> transfers_;
  std::vector<std::shared_ptr<OwnRead>> own_reads_;  // shared with who answers and with the pool
  Lifetime lifetime_;
};

}  // namespace unreft::smp
