// BlockReader: any block of the restored version, wherever its bytes are: read from the node that
// holds them, or decoded from k chunks of its stripe. Every block is checked against the CRC that
// its source took of it before it was ever sent.
//
// A block that is lost is decoded by one node for all that want it: by a member of its group that
// its place in the code names. Where that one does not do so whoever wants it decodes it itself.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/lifetime.h"
#include "smp/desk/node_state.h"
#include "smp/job/peers.h"
#include "smp/protect/block_reads.h"
#include "smp/protect/coded_version.h"
#include "smp/protect/source_health.h"
#include "smp/protect/stripe_gatherer.h"
#include "smp/restore/restore_catalog.h"

namespace unreft::smp {

// Single-threaded on the node's executor; coding and CRCs run on the work pool. After Cancel every
// block that is under way ends soon, with Cancelled.
class BlockReader {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // All references outlive this; the catalog is ready. `own`: blocks of this node.
  BlockReader(NodeState& state, Peers& peers, const meta::JobRecords& job,
              const RestoreCatalog& catalog, BlockReads::Own own);

  // Fills `into`, a whole block, which is written to until `done` has run; `keep` is what it lies
  // in. Tried until it succeeds or read_timeout has passed: then the last failure.
  void Read(Rank rank, uint64_t block, std::span<std::byte> into, std::shared_ptr<void> keep,
            Done done);
  // The same, never from the slab's own node.
  void Decode(Rank rank, uint64_t block, std::span<std::byte> into, std::shared_ptr<void> keep,
              Done done);

  // Which node decodes that block of the catalog for all: the same for all that know of the same
  // losses. None where nobody does, or the group's record is not known yet.
  std::optional<NodeSlot> DecoderOf(Rank rank, uint64_t block) const;
  // The same, once the record is known (GroupRecordOf); FailedPrecondition when nobody does.
  void FindDecoder(Rank rank, uint64_t block,
                   absl::AnyInvocable<void(absl::StatusOr<NodeSlot>)> done);

  // Of a block of a slab in the catalog.
  uint32_t CrcOf(Rank rank, uint64_t block) const { return catalog_.Find(rank)->crcs[block]; }

  void Cancel();
  // Nothing of it is on its way any more.
  bool idle() const { return running_ == 0; }

  // The record of the group that the slot is in, asked of its members; NotFound when all of them
  // have said that they have none, else the last failure when none has told in time. After Cancel:
  // Cancelled.
  void GroupRecordOf(
      NodeSlot slot,
      absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const GuardRecord>>)> done);

 private:
  struct Request {
    Rank rank;
    uint64_t block = 0;
    std::span<std::byte> into;
    std::shared_ptr<void> keep;
    Done done;
    Time deadline;
    bool decode_only = false;  // its home is who asks
    bool decode_here = false;  // whoever decodes it for all does not
    std::optional<Time> patient_until = std::nullopt;  // with who is not ready to
  };
  void ReadFromHome(std::shared_ptr<Request> request);
  // Ends the request with what was read, unless that is not what it ought to be.
  void CheckRead(std::shared_ptr<Request> request, absl::AnyInvocable<void()> on_wrong);
  ReadRequest ReadOf(const Request& request, ReadRequest::Kind kind) const;
  void StartDecoding(std::shared_ptr<Request> request);
  void DecodeIn(std::shared_ptr<const CodedVersion> coded, std::shared_ptr<Request> request);
  void DecodeHere(std::shared_ptr<const CodedVersion> coded, const ec::Cell& cell,
                  std::shared_ptr<Request> request);
  void ReadDecoded(NodeSlot decoder, std::shared_ptr<Request> request);
  // Where a block of a slab lies in the code; none where the record has no such slab.
  std::optional<ec::Cell> CellOf(const CodedVersion& coded, Rank rank, uint64_t block) const;
  // None where all the others of the group are lost.
  std::optional<NodeSlot> DecoderAt(const CodedVersion& coded, const ec::Cell& cell) const;
  std::set<NodeSlot> LostMembers() const;
  void Again(std::shared_ptr<Request> request, const absl::Status& failure);
  void End(Request& request, absl::Status status);
  // The restored version in the group of that slot; null before its record is had.
  std::shared_ptr<const CodedVersion> CodedOf(NodeSlot slot) const;
  absl::Status TakeRecord(NodeSlot slot, const GuardRecord& record);
  absl::Status CheckFits(const GuardRecord& record) const;
  struct RecordSearch {
    NodeSlot slot;
    size_t attempt = 0;
    std::set<NodeSlot> have_none;  // members that said so, one after the other
    absl::Status problem;          // of the last that failed otherwise; OK before
    Time deadline;
  };
  void AskRecord(RecordSearch search,
                 absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const GuardRecord>>)> done);

  NodeState& state_;
  Peers& peers_;
  const meta::JobRecords& job_;
  const RestoreCatalog& catalog_;
  std::vector<std::shared_ptr<const CodedVersion>> coded_;  // by group
  SourceHealth health_;
  BlockReads reads_;  // from the slabs' homes
  StripeGatherer gatherer_;
  uint64_t running_ = 0;  // requests
  bool cancelled_ = false;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
