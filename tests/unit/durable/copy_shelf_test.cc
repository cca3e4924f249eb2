#include "durable/copy_shelf.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <set>

#include "tests/fakes/memory_cold_store.h"

namespace unreft::durable {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CopyShelfTest : public ::testing::Test {
 protected:
  void AddCopy(const std::string& name, uint64_t written_ms, bool is_complete = true,
               const std::string& job = "job") {
    CopyOrder order;
    order.set_job(job);
    order.set_step(written_ms);
    order.set_written_ms(written_ms);
    order.set_is_own(is_own_);
    order.set_format(format_);
    order.set_id(name);
    ASSERT_TRUE(store_.Put(name + "/.unreft/order", EncodeOrder(order)).ok());
    ASSERT_TRUE(store_.Put(name + "/__0_0.distcp", "items").ok());
    if (!is_complete) return;
    ASSERT_TRUE(store_.Put(name + "/.unreft/copy", "record").ok());
    ASSERT_TRUE(store_.Put(name + "/.metadata", "metadata").ok());
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    const std::vector<ShelvedCopy> copies = ListCopies(store_, "job").value();
    for (const ShelvedCopy& copy : copies) {
      names.push_back(copy.name + (copy.is_complete ? "" : "?"));
    }
    return names;
  }
  std::set<std::string> Directories() {
    std::set<std::string> directories;
    const std::vector<ColdEntry> files = store_.List("").value();
    for (const ColdEntry& file : files) {
      directories.insert(file.name.substr(0, file.name.find('/')));
    }
    return directories;
  }

  MemoryColdStore store_;
  bool is_own_ = true;
  CopyOrder::Format format_ = CopyOrder::DCP;
};

TEST_F(CopyShelfTest, ListsThoseOfTheJobTheNewestFirst) {
  EXPECT_THAT(Names(), IsEmpty());
  AddCopy("b", 20);
  AddCopy("a", 10);
  AddCopy("c", 30, /*is_complete=*/false);
  AddCopy("other", 40, true, "another");
  ASSERT_TRUE(store_.Put("notes.txt", "mine").ok());
  ASSERT_TRUE(store_.Put("d/.unreft/order", "no order").ok());
  EXPECT_THAT(Names(), ElementsAre("c?", "b", "a"));
}

// Even if it had the mark of one that it can go on from.
TEST_F(CopyShelfTest, ACopyThatHasTheWeightsAloneIsNone) {
  AddCopy("whole", 10);
  format_ = CopyOrder::SAFETENSORS;
  AddCopy("weights", 20);
  EXPECT_THAT(Names(), ElementsAre("whole"));
  EXPECT_THAT(*UnreadableCopies(store_), IsEmpty());
  EXPECT_THAT(PruneCopies(store_, "job", "none", 0).removed, ElementsAre("whole"));
}

TEST_F(CopyShelfTest, KeepsTheNewestAndWhatIsNotOfTheJob) {
  for (uint64_t i = 1; i <= 4; ++i) AddCopy(fmt::format("copy{}", i), 10 * i);
  AddCopy("abandoned", 15, /*is_complete=*/false);
  AddCopy("under-way", 50, /*is_complete=*/false);
  AddCopy("other", 5, true, "another");
  ASSERT_TRUE(store_.Put("notes.txt", "mine").ok());
  const PrunedCopies pruned = PruneCopies(store_, "job", "copy4", 2);
  EXPECT_TRUE(pruned.status.ok()) << pruned.status;
  EXPECT_THAT(pruned.removed, ElementsAre("copy2", "abandoned", "copy1"));
  EXPECT_EQ(Directories(),
            (std::set<std::string>{"copy3", "copy4", "under-way", "other", "notes.txt"}));
}

TEST_F(CopyShelfTest, NothingIsRemovedBeforeANewerOneIsComplete) {
  AddCopy("old", 10, /*is_complete=*/false);
  AddCopy("new", 20, /*is_complete=*/false);
  EXPECT_THAT(PruneCopies(store_, "job", "new", 1).removed, IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("new?", "old?"));
}

TEST_F(CopyShelfTest, WhatTheJobHasBegunInVainGoesBeforeTheNext) {
  AddCopy("whole", 10);
  AddCopy("begun", 20, /*is_complete=*/false);
  AddCopy("other", 30, /*is_complete=*/false, "another");
  is_own_ = false;
  AddCopy("asked-for", 40, /*is_complete=*/false);
  const PrunedCopies removed = RemoveUnfinished(store_, "job");
  EXPECT_TRUE(removed.status.ok()) << removed.status;
  EXPECT_THAT(removed.removed, ElementsAre("begun"));
  EXPECT_EQ(Directories(), (std::set<std::string>{"whole", "other", "asked-for"}));
}

// As a file system of a network lists a directory from its cache.
class LateStore : public MemoryColdStore {
 public:
  absl::StatusOr<std::vector<ColdEntry>> List(std::string_view directory) override {
    auto files = MemoryColdStore::List(directory);
    std::erase_if(*files, [](const ColdEntry& file) { return file.name == "new/.metadata"; });
    return files;
  }
};

TEST_F(CopyShelfTest, WhatIsListedAsItWasBeforeItWasCompletedStays) {
  LateStore late;
  CopyOrder order;
  order.set_job("job");
  order.set_is_own(true);
  ASSERT_TRUE(late.Put("new/.unreft/order", EncodeOrder(order)).ok());
  ASSERT_TRUE(late.Put("new/.unreft/copy", "record").ok());
  ASSERT_TRUE(late.Put("new/.metadata", "metadata").ok());
  EXPECT_THAT(RemoveUnfinished(late, "job").removed, IsEmpty());
  ASSERT_TRUE(late.Remove("new/.metadata").ok());
  EXPECT_THAT(RemoveUnfinished(late, "job").removed, ElementsAre("new"));
}

TEST_F(CopyShelfTest, WhatSomebodyAskedForAndWhatWasJustMadeStay) {
  is_own_ = false;
  AddCopy("published", 1);
  is_own_ = true;
  AddCopy("a", 30);
  AddCopy("b", 40);
  AddCopy("just-made", 20);  // by a clock that is late
  EXPECT_THAT(PruneCopies(store_, "job", "just-made", 1).removed, ElementsAre("a"));
  EXPECT_EQ(Directories(), (std::set<std::string>{"published", "b", "just-made"}));
}

TEST_F(CopyShelfTest, TheNextIsLaterThanAllThatAreThere) {
  EXPECT_EQ(*NextWrittenMs(store_, "job", 5), 5u);
  AddCopy("of-a-fast-clock", 1000);
  AddCopy("other", 2000, true, "another");
  EXPECT_EQ(*NextWrittenMs(store_, "job", 5), 1001u);
  EXPECT_EQ(*NextWrittenMs(store_, "job", 5000), 5000u);
}

// The store lists by name: what makes it a copy goes first all the same.
TEST_F(CopyShelfTest, WhatIsRemovedInPartIsNoCopyAndGoesTheNextTime) {
  AddCopy("copy", 10);
  ASSERT_TRUE(RemoveCopy(store_, "copy").ok());
  EXPECT_THAT(*store_.List(""), IsEmpty());
  AddCopy("copy", 10);
  AddCopy("newer", 20);
  ASSERT_TRUE(store_.Remove("copy/.metadata").ok());  // and then the remover died
  EXPECT_THAT(Names(), ElementsAre("newer", "copy?"));
  EXPECT_THAT(PruneCopies(store_, "job", "newer", 1).removed, ElementsAre("copy"));
}

// By its order it is found again, however large what is left.
TEST_F(CopyShelfTest, WhatCannotBeRemovedNowGoesTheNextTime) {
  AddCopy("copy", 10, /*is_complete=*/false);
  store_.FailRemove("copy/__0_0.distcp", absl::UnavailableError("busy"));
  PrunedCopies removed = RemoveUnfinished(store_, "job");
  EXPECT_TRUE(absl::IsUnavailable(removed.status)) << removed.status;
  EXPECT_THAT(Names(), ElementsAre("copy?"));
  removed = RemoveUnfinished(store_, "job");
  EXPECT_TRUE(removed.status.ok()) << removed.status;
  EXPECT_THAT(*store_.List(""), IsEmpty());
}

}  // namespace
}  // namespace unreft::durable
