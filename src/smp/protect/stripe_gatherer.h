// StripeGatherer: gets k chunks of a position of a stripe into tiles, and has something made of
// them: parities, or a chunk that is lost.
//
// Which k, how long it takes, and what becomes of a source that fails its policy says (AllData for
// encoding, AnyK for decoding). What has landed is checked against the CRC of its source in the
// same pass in which it is used, and is read again only if it is not what its source said.
//
//   tiles -> choose k -> read what has not landed -> check, make -> done
//                 ^              | failed               | differs
//                 └── a pause ───┴──────────────────────┘
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "base/work_pool.h"
#include "smp/core/node_options.h"
#include "smp/memory/tile_pool.h"
#include "smp/protect/block_reads.h"
#include "smp/protect/coded_version.h"
#include "smp/protect/source_policy.h"

namespace unreft::smp {

struct GatheredChunk {
  uint32_t chunk = 0;
  std::span<const std::byte> bytes;  // none: zeros that are nowhere
  uint32_t crc = 0;
};

struct GatheredStripe {
  std::vector<GatheredChunk> chunks;  // k, in the order of their numbers
  TileSet tiles;                      // k in which they lie, then those asked for beside them
};

// Single-threaded on the node's executor; CRCs, and what is made, are computed on the work pool.
class StripeGatherer {
 public:
  // All references outlive this.
  struct Seams {
    Executor& executor;
    WorkPool& pool;
    Peers& peers;
    Log& log;
    TilePool& tiles;
    BlockReads::Own own = nullptr;  // null where no chunk is this node's
  };
  // On the work pool. After a failure all chunks are read again.
  using Make = absl::AnyInvocable<absl::Status(const GatheredStripe&)>;
  struct Want {
    std::shared_ptr<const CodedVersion> coded;
    uint32_t stripe = 0;
    uint64_t position = 0;
    size_t more_tiles = 0;  // beside the k, for what is made
    Make make;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<GatheredStripe>)>;

  StripeGatherer(Seams seams, const NodeOptions& options, TilePurpose purpose);
  // Nothing is called back after it. What is made may be touched until `make` is destroyed.
  ~StripeGatherer() = default;
  StripeGatherer(const StripeGatherer&) = delete;
  StripeGatherer& operator=(const StripeGatherer&) = delete;

  // `done` runs once, never inline, when nothing is touched any more: with what was gathered, the
  // last failure when the policy gives it no more time, or Cancelled.
  void Gather(Want want, std::unique_ptr<SourcePolicy> policy, Done done);

  // Lets all of them end soon; from now on nothing is gathered.
  void Cancel();

  // So many hold tiles, the others wait for some.
  uint64_t under_way() const { return under_way_; }

 private:
  struct Piece {
    size_t tile = 0;
    std::span<std::byte> bytes;  // none: zeros that are nowhere
    uint32_t crc = 0;
    bool has_landed = false;
    bool is_suspect = false;  // landed before, without its CRC
  };
  struct Gathering {
    Want want;
    std::unique_ptr<SourcePolicy> policy;
    Done done;
    GatheredStripe gathered;
    std::map<uint32_t, Piece> pieces;  // by chunk
    uint32_t reading = 0;
    absl::Status failure;  // of a read
    absl::Status status;   // of the pool's work
  };

  void Run(const std::shared_ptr<Gathering>& gathering);
  static void Arrange(Gathering& gathering, const std::vector<uint32_t>& chunks);
  void ReadChunk(const std::shared_ptr<Gathering>& gathering, uint32_t chunk);
  void OnRead(const std::shared_ptr<Gathering>& gathering, uint32_t chunk,
              const absl::StatusOr<ReadHeader>& header);
  void Compute(const std::shared_ptr<Gathering>& gathering);
  static absl::Status CheckAndMake(Gathering& gathering);
  void OnComputed(const std::shared_ptr<Gathering>& gathering);
  void Again(const std::shared_ptr<Gathering>& gathering, const absl::Status& failure);
  void End(const std::shared_ptr<Gathering>& gathering, absl::StatusOr<GatheredStripe> result);

  const Seams seams_;
  const NodeOptions& options_;
  const TilePurpose purpose_;
  BlockReads reads_;
  std::vector<std::shared_ptr<Gathering>> waiting_;  // for tiles
  uint64_t under_way_ = 0;
  bool cancelled_ = false;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
