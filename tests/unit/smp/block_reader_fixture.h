// A group RS(2,2) of four nodes: ranks on nodes 0, 1 and 2, node 0 is this one, and the others give
// what they have, or refuse.
#pragma once

#include <absl/functional/function_ref.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ec/isal_code.h"
#include "smp/restore/block_reader.h"
#include "smp/restore/restore_catalog.h"
#include "tests/unit/layout_testing.h"
#include "tests/unit/smp/group_fixture.h"

namespace unreft::smp {

class BlockReaderFixture : public GroupFixture {
 protected:
  using ReadDone = absl::AnyInvocable<void(absl::StatusOr<ReadSource>)>;

  static constexpr uint64_t kNodes = 4;
  static constexpr uint64_t kRanks = 3;
  static constexpr uint64_t kBlocks = 4;

  BlockReaderFixture() : GroupFixture(2, 2) {
    options_.read_timeout = std::chrono::seconds(5);
    *record_message_.mutable_group() = group();
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      MemberSlab& member = *record_message_.add_members();
      if (slot >= kRanks) continue;
      RankSlab& slab = *member.add_slabs();
      slab.set_rank(slot);
      slab.set_data_bytes(kBlocks * kBlockBytes);
    }
    Random random(7);
    for (auto& data : data_) data = RandomBytes(random, kBlocks * kBlockBytes);
    const auto& members = record_message_.members();
    slabs_ = *GroupSlabs::Make({2, 2}, kBlockBytes, {members.begin(), members.end()});
    StartOwn();
    InTurn([&] { Serve(NodeSlot{0}, *own_peers_); });
    for (uint64_t slot = 1; slot < kNodes; ++slot) {
      StartOther(NodeSlot{slot}, [this, slot](Peers& peers) { Serve(NodeSlot{slot}, peers); });
    }
  }
  ~BlockReaderFixture() override {
    InTurn([&] {
      reader_.reset();
      catalog_.reset();
    });
  }

  void Serve(NodeSlot slot, Peers& peers) {
    peers.Answer<MetaRequest, MetaReply>("meta", [this](NodeSlot, auto request, auto done) {
      MetaReply reply;
      *reply.add_slabs() = DescriptionOf(Rank{request.slot()});
      done(std::move(reply));
    });
    peers.Answer<MetaRequest, GuardRecord>("record", [this, slot](NodeSlot, auto, auto done) {
      if (on_record_asked_) on_record_asked_(slot);
      const auto refusal = record_refusals_.find(slot);
      if (refusal != record_refusals_.end()) return done(refusal->second);
      done(GuardRecord(record_message_));
    });
    peers.ServeReads([this, slot](NodeSlot, const std::string& body, uint64_t, auto done) {
      ReadRequest request;
      UNREFT_CHECK(request.ParseFromString(body));
      Give(slot, request, std::move(done));
    });
  }
  void Give(NodeSlot slot, const ReadRequest& request, ReadDone done) {
    if (request.kind() == ReadRequest::DECODED) return GiveDecoded(slot, request, std::move(done));
    if (request.kind() == ReadRequest::DATA) return GiveData(slot, request, std::move(done));
    ++parities_given_;
    if (without_parities_.contains(slot)) {
      return done(absl::NotFoundError("it has no parities"));
    }
    const std::span<const std::byte> block =
        *sent_.emplace_back(std::make_unique<std::vector<std::byte>>(
            ParityOf(request.stripe(), request.parity(), request.first_block())));
    ReadSource source = SourceOf(block);
    if (rotten_.contains(slot)) (*sent_.back())[0] ^= std::byte{1};
    done(std::move(source));
  }
  void GiveData(NodeSlot slot, const ReadRequest& request, ReadDone done) {
    if (const auto refusal = data_refusals_.find(slot); refusal != data_refusals_.end()) {
      ++data_refused_;
      return done(refusal->second);
    }
    if (!with_data_.contains(slot)) return waiting_.push_back(std::move(done));
    done(SourceOf(BlockOf(Rank{request.rank()}, request.first_block())));
  }
  void GiveDecoded(NodeSlot slot, const ReadRequest& request, ReadDone done) {
    decoders_asked_.emplace_back(slot, request.first_block());
    if (const auto refusal = decoded_refusals_.find(slot); refusal != decoded_refusals_.end()) {
      return done(refusal->second);
    }
    ReadSource source = SourceOf(*sent_.emplace_back(std::make_unique<std::vector<std::byte>>(
        BlockOf(Rank{request.rank()}, request.first_block()).begin(),
        BlockOf(Rank{request.rank()}, request.first_block()).end())));
    if (rotten_.contains(slot)) (*sent_.back())[0] ^= std::byte{1};
    done(std::move(source));
  }
  void MakeReader() {
    reader_ =
        std::make_unique<BlockReader>(*state_, *own_peers_, job_, *catalog_,
                                      [this](const ReadRequest& request, uint64_t, ReadDone done) {
                                        Give(NodeSlot{0}, request, std::move(done));
                                      });
  }
  SlabDescription DescriptionOf(Rank rank) const {
    const std::vector<std::byte>& data = data_[rank.value];
    SlabDescription description = GroupFixture::DescriptionOf(
        rank, kRanks, Whole(fmt::format("w{}", rank), {data.size() / 4}), data);
    description.set_generation(5 + rank.value);
    return description;
  }
  std::span<const std::byte> BlockOf(Rank rank, uint64_t block) const {
    return std::span(data_[rank.value]).subspan(block * kBlockBytes, kBlockBytes);
  }
  std::vector<std::byte> ParityOf(uint32_t stripe, uint32_t parity, uint64_t position) const {
    std::vector<std::span<const std::byte>> data;
    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      const std::optional<uint64_t> block = slabs_->layout().BlockAt(stripe, chunk, position);
      if (!block) {
        data.emplace_back();
        continue;
      }
      const RankBlock at = slabs_->BlockOf(slabs_->layout().MemberOf(stripe, chunk), *block);
      data.push_back(BlockOf(at.rank, at.block));
    }
    std::vector<std::byte> parities[2] = {std::vector<std::byte>(kBlockBytes),
                                          std::vector<std::byte>(kBlockBytes)};
    const std::span<std::byte> into[] = {parities[0], parities[1]};
    (*ec::IsalCode::Make({2, 2}))->Encode(data, into);
    return parities[parity];
  }

  static JobDecision DecisionWhere(absl::FunctionRef<bool(uint64_t slot)> is_lost) {
    JobDecision decision;
    decision.kind = DecisionKind::kRestored;
    decision.version = kVersion;
    for (uint64_t slot = 0; slot < kRanks; ++slot) {
      decision.holders.push_back({NodeSlot{slot}, {Rank{slot}}, is_lost(slot)});
    }
    return decision;
  }

  // Node 0 decodes all of its slab; each block's bytes, or why not.
  std::vector<absl::StatusOr<std::vector<std::byte>>> DecodeAll(bool lost = true) {
    std::vector<absl::StatusOr<std::vector<std::byte>>> results(
        kBlocks, absl::DeadlineExceededError("it still waits"));
    const JobDecision decision = DecisionWhere([lost](uint64_t) { return lost; });
    InTurn([&] {
      catalog_ = std::make_unique<RestoreCatalog>(
          *state_, *own_peers_, job_, decision, std::nullopt, [this, &results] {
            MakeReader();
            for (uint64_t block = 0; block < kBlocks; ++block) {
              auto into = std::make_shared<std::vector<std::byte>>(kBlockBytes);
              reader_->Decode(Rank{0}, block, *into, into,
                              [into, &result = results[block]](const absl::Status& status) {
                                if (status.ok()) {
                                  result = *into;
                                } else {
                                  result = status;
                                }
                              });
            }
          });
    });
    Settle(std::chrono::seconds(4));
    return results;
  }

  // Node 1 has lost its memory, and the others have theirs; `then` runs once the catalog is ready.
  void LoseNodeOne(absl::AnyInvocable<void()> then) {
    data_refusals_[NodeSlot{1}] = absl::NotFoundError("its memory is new");
    with_data_ = {NodeSlot{0}, NodeSlot{2}};
    const JobDecision decision = DecisionWhere([](uint64_t slot) { return slot == 1; });
    InTurn([&] {
      catalog_ =
          std::make_unique<RestoreCatalog>(*state_, *own_peers_, job_, decision, std::nullopt,
                                           [this, then = std::move(then)]() mutable {
                                             MakeReader();
                                             then();
                                           });
    });
    Settle(std::chrono::seconds(4));
  }

  // What node 0 learns of its group within a second, though it would ask for five.
  absl::StatusOr<std::shared_ptr<const GuardRecord>> AskForRecord() {
    absl::StatusOr<std::shared_ptr<const GuardRecord>> result =
        absl::DeadlineExceededError("it still asks");
    const JobDecision decision = DecisionWhere([](uint64_t) { return false; });
    InTurn([&] {
      reader_.reset();
      catalog_ = std::make_unique<RestoreCatalog>(
          *state_, *own_peers_, job_, decision, std::nullopt, [this, &result] {
            MakeReader();
            reader_->GroupRecordOf(NodeSlot{0}, [&result](auto record) { result = record; });
          });
    });
    Settle(std::chrono::seconds(1));
    return result;
  }
  void NobodyHasARecord() {
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      record_refusals_[NodeSlot{slot}] = absl::NotFoundError("it has no guard");
    }
  }

  void ExpectRight(const std::vector<absl::StatusOr<std::vector<std::byte>>>& results) const {
    for (uint64_t block = 0; block < kBlocks; ++block) {
      ASSERT_EQ(results[block].status(), absl::OkStatus()) << "block " << block;
      const auto right = BlockOf(Rank{0}, block);
      EXPECT_TRUE(std::equal(right.begin(), right.end(), results[block]->begin()));
    }
  }

  GuardRecord record_message_;
  std::vector<std::byte> data_[kRanks];
  std::optional<GroupSlabs> slabs_;
  std::unique_ptr<RestoreCatalog> catalog_;
  std::unique_ptr<BlockReader> reader_;
  std::set<NodeSlot> without_parities_;
  std::set<NodeSlot> with_data_;  // the others let who asks wait
  std::map<NodeSlot, absl::Status> data_refusals_;
  std::map<NodeSlot, absl::Status> decoded_refusals_;
  std::vector<std::pair<NodeSlot, uint64_t>> decoders_asked_;
  uint64_t data_refused_ = 0;
  uint64_t parities_given_ = 0;
  std::set<NodeSlot> rotten_;  // their parities are not what they say
  std::map<NodeSlot, absl::Status> record_refusals_;
  std::function<void(NodeSlot)> on_record_asked_;
  std::vector<ReadDone> waiting_;  // for a lost slab
  std::vector<std::unique_ptr<std::vector<std::byte>>> sent_;
};

}  // namespace unreft::smp
