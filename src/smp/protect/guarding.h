// Guarding: the work of filling one guard: a node's share in the protection of one version.
//
// A lane per parity chunk goes through the positions in order, a few at a time. The lane of the
// stripe that this node aggregates reads the k data blocks of a position, encodes all m parities,
// keeps the first and hands the others on to their holders; the other lanes read theirs from their
// aggregators (docs/protocol.md, rule 6). Beside the lanes the manifests, CRC tables and extras of
// the m members before this one are copied. A source that is still capturing answers when the block
// is there, so all of it runs along with the capture.
//
// When the guard is made again after a loss, each lane encodes its parity itself from the k data
// blocks: more bytes, the same parity. So does a lane whose aggregator is lost meanwhile, from
// where it was left (docs/protocol.md, rule 18).
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <list>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/log.h"
#include "base/work_pool.h"
#include "ec/erasure_code.h"
#include "smp/core/node_options.h"
#include "smp/job/peers.h"
#include "smp/memory/tile_pool.h"
#include "smp/protect/group_view.h"
#include "smp/protect/guard_store.h"

namespace unreft::smp {

// Single-threaded on the node's executor; coding and CRCs run on the work pool. Destroyed only when
// it is idle, or with the transport's reads already ended.
// After it ended well it goes on handing parities on.
class Guarding {
 public:
  struct Seams {
    Executor& executor;
    WorkPool& pool;
    Peers& peers;
    Log& log;
    TilePool& tiles;
    std::shared_ptr<const ec::ErasureCode> code;
  };
  using ReadDone = absl::AnyInvocable<void(absl::StatusOr<ReadSource>)>;

  enum class Mode {
    kWithGroup,
    kAlone,   // no aggregator hands anything on
    kHandOn,  // the guard is complete; others may lack what this node aggregates
  };
  // `on_end`, once, in a turn of its own, unless kHandOn: the guard is sealed (ok, with its
  // record), it cannot be, or Cancelled.
  using OnEnd = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const GuardRecord>>)>;
  Guarding(Seams seams, const NodeOptions& options, Version version, GroupView group,
           GroupSlabs slabs, Guard& guard, Mode mode, OnEnd on_end);
  ~Guarding();

  void Start();

  // And has said so: it may be destroyed.
  bool ended() const { return end_told_; }

  // Another holder wants its parities of the stripe that this node aggregates: answered when they
  // are encoded, once more if they were before.
  void OnRead(const ReadRequest& request, uint64_t bytes, ReadDone done);

  // That member's memory is gone: what it was to hand on is encoded here, and nothing is kept for
  // it.
  void DoWithout(NodeSlot slot);
  bool DoesWithout(NodeSlot slot) const;

  // Ends the reads that are on their way; on_end follows when nothing touches the guard any more.
  void Cancel();

  Version version() const { return version_; }
  Guard& guard() { return guard_; }
  const GroupView& group() const { return group_; }
  const GroupSlabs& slabs() const { return slabs_; }

 private:
  // One position of the aggregated stripe, or of a lane that encodes alone.
  struct Encoding {
    uint32_t lane = 0;
    uint64_t position = 0;
    bool again = false;  // handed on before, asked for once more
    TileSet tiles;       // the k data chunks, then the m parities
    std::vector<std::span<std::byte>> data;    // by source; empty: zeros that are nowhere
    std::vector<std::span<std::byte>> parity;  // by number; the lane's own lies in the guard
    std::vector<uint32_t> input_crcs;
    std::vector<uint32_t> parity_crcs;
    std::vector<bool> landed;   // by source
    std::vector<bool> suspect;  // by source: landed before, without its CRC
    uint32_t reading = 0;
    bool failed = false;
    absl::Status status;  // of the pool's work
  };
  struct Lane {
    uint32_t parity = 0;  // the number of this node in the stripe's parities
    uint32_t stripe = 0;
    bool encodes = false;
    uint64_t next = 0;  // position to begin
    uint64_t running = 0;
    uint64_t finished = 0;
  };
  // Parities that wait to be handed on.
  struct Fresh {
    std::shared_ptr<Encoding> encoding;
    std::set<uint32_t> served;
  };
  struct Waiting {
    ReadRequest request;
    uint64_t bytes = 0;
    ReadDone done;
  };

  void RunRules();
  void RunLane(Lane& lane);
  void StartPosition(uint32_t lane, uint64_t position);
  bool Ending();
  void End(absl::StatusOr<std::shared_ptr<const GuardRecord>> result);

  void StartEncoding(uint32_t lane, uint64_t position, bool again);
  void ReadSources(std::shared_ptr<Encoding> encoding);
  void ReadSourceBlock(std::shared_ptr<Encoding> encoding, uint32_t source);
  void Encode(std::shared_ptr<Encoding> encoding);
  void OnEncoded(std::shared_ptr<Encoding> encoding);

  void FetchParity(uint32_t lane, uint64_t position);
  void OnFetched(uint32_t lane, uint64_t position, const std::string& header);
  void Serve();
  void RefuseWaiting();
  bool TryServe(Waiting& waiting);
  bool IsExpected(uint64_t position, uint32_t parity, const Fresh& fresh) const;
  void BePatient(const Lane& lane);
  void LosePatience();

  // `is_suspect`: what the member has sent before did not have its CRCs.
  void FetchReplica(uint32_t member, bool is_suspect);
  void Seal();
  void Retry(absl::AnyInvocable<void()> what);
  // Counts what touches the guard; every start has its end.
  void Begun() { ++running_; }
  void Ended();

  Seams seams_;
  const NodeOptions& options_;
  const Version version_;
  const GroupView group_;
  const GroupSlabs slabs_;
  Guard& guard_;
  const uint64_t coding_;
  const Mode mode_;
  OnEnd on_end_;

  std::vector<Lane> lanes_;
  std::map<uint64_t, Fresh> fresh_;  // by position of the aggregated stripe
  std::vector<bool> encoded_;        // positions of the aggregated stripe
  std::set<uint64_t> encoding_again_;
  std::list<Waiting> waiting_;
  // Of each parity of the aggregated stripe who holds it.
  struct ParityTaker {
    uint64_t asked = 0;  // the newest position
    bool asks = true;    // or it has all, or is gone: nothing is kept for it
  };
  std::vector<ParityTaker> holders_;
  TimerId patience_ = TimerId::kNone;
  std::set<uint32_t> gone_;                             // members
  std::map<uint32_t, std::vector<SlabMeta>> replicas_;  // by member
  std::map<TransferId, uint32_t> transfers_;            // and of which lane
  uint64_t running_ = 0;
  bool sealing_ = false;
  bool cancelled_ = false;
  bool ended_ = false;
  bool end_told_ = false;
  absl::Status failure_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
