// A client of a dry run: needs nobody, says which tensors its rank has, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "unreft/c.h"

namespace unreft::snapshot {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class DryRunTest : public ::testing::Test {
 protected:
  DryRunTest() {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    setenv("UNREFT_DRY_RUN", directory_.c_str(), 1);
    setenv("UNREFT_NODE", "3", 1);
    unreft_open_options_init(&options_);
    options_.job = "dry";
    options_.rank = 1;
    options_.world = 2;
    options_.any_world = 1;
    unreft_tensor_init(&tensor_);
    tensor_.name = "w";
    tensor_.dtype = UNREFT_INT32;
    tensor_.dims = 1;
    tensor_.global_shape = &shape_;
    tensor_.offset = &offset_;
    tensor_.extent = &extent_;
    tensor_.data = data_;
  }
  ~DryRunTest() override {
    unreft_close(client_);
    unsetenv("UNREFT_DRY_RUN");
    unsetenv("UNREFT_NODE");
    std::filesystem::remove_all(directory_);
  }
  void Open() { ASSERT_EQ(unreft_open(&options_, &client_), UNREFT_OK) << unreft_error(); }
  std::string Written() const {
    std::ifstream file(directory_ + "/rank-1.json");
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::string directory_ = "/tmp/unreft-dry-run-XXXXXX";
  unreft_open_options options_;
  unreft_tensor tensor_;
  uint64_t shape_ = 6;
  uint64_t offset_ = 3;
  uint64_t extent_ = 3;
  int32_t data_[3] = {1, 2, 3};
  unreft_client* client_ = nullptr;
};

TEST_F(DryRunTest, GoesToItsFirstTensorsWithoutADaemon) {
  Open();
  unreft_decision decision{};
  decision.struct_bytes = sizeof(decision);
  EXPECT_EQ(unreft_restore_begin(client_, &decision), UNREFT_OK);
  EXPECT_EQ(decision.restored, 0);
  EXPECT_EQ(decision.tensor_count, 0);
  int32_t ever = 1;
  EXPECT_EQ(unreft_ever_committed(client_, &ever), UNREFT_OK);
  EXPECT_EQ(ever, 0);
  EXPECT_EQ(unreft_restore_end(client_), UNREFT_OK);
  EXPECT_EQ(unreft_fence(client_, nullptr), UNREFT_OK);
  EXPECT_EQ(unreft_set_writer_streams(client_, nullptr, 0), UNREFT_OK);
  unreft_status status{};
  status.struct_bytes = sizeof(status);
  EXPECT_EQ(unreft_get_status(client_, &status), UNREFT_OK);
  EXPECT_EQ(status.connected, 0);
  EXPECT_EQ(Written(), "");
  EXPECT_EQ(unreft_register(client_, &tensor_, 1, 0), UNREFT_DRY_RUN);
  EXPECT_THAT(unreft_error(), StartsWith("dry run: rank 1 of 2 has written its layout, 1 tensors"));
  EXPECT_EQ(Written(), R"({"unreft_layout":{"format":1,"min_reader":1},"job":"dry","world":2,)"
                       R"("tensors":[["w","int32",[6]]],)"
                       R"("ranks":[{"rank":1,"node":3,"any_world":true,"shards":[[0,[3],[3]]]}]})");
  EXPECT_EQ(data_[0], 1);
}

TEST_F(DryRunTest, WritesOnceAndThenOnlySaysSo) {
  Open();
  EXPECT_EQ(unreft_restore_read(client_, &tensor_, 1), UNREFT_DRY_RUN);
  const std::string written = Written();
  tensor_.name = "other";
  EXPECT_EQ(unreft_register_within(client_, &tensor_, 1, 0, 1), UNREFT_DRY_RUN);
  EXPECT_EQ(Written(), written);
}

TEST_F(DryRunTest, WhatNeedsADaemonIsTheEnd) {
  Open();
  int32_t outcome = 0;
  EXPECT_EQ(unreft_snapshot(client_, 1, nullptr, 0, nullptr, &outcome), UNREFT_DRY_RUN);
  EXPECT_EQ(outcome, UNREFT_SKIPPED);
  EXPECT_THAT(unreft_error(), HasSubstr("can do nothing before it has named its tensors"));
  EXPECT_EQ(unreft_wait_ready(client_, 1), UNREFT_DRY_RUN);
  EXPECT_EQ(unreft_wait_committed(client_, 1, 1), UNREFT_DRY_RUN);
  EXPECT_EQ(unreft_rebind(client_, nullptr, nullptr, 0), UNREFT_DRY_RUN);
  const void* extras = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(unreft_restore_extras(client_, 0, &extras, &bytes), UNREFT_DRY_RUN);
}

TEST_F(DryRunTest, ARangeIsTheBoxesThatItComesTo) {
  Open();
  const uint64_t range[] = {1, 3};
  tensor_.range = range;
  EXPECT_EQ(unreft_register(client_, &tensor_, 1, 0), UNREFT_DRY_RUN);
  EXPECT_THAT(Written(), HasSubstr("[[0,[4],[2]]]"));
}

TEST_F(DryRunTest, BadTensorsAreRefusedAsEver) {
  Open();
  extent_ = 4;
  EXPECT_EQ(unreft_register(client_, &tensor_, 1, 0), UNREFT_INVALID_ARGUMENT);
  EXPECT_THAT(unreft_error(), HasSubstr("'w'"));
  EXPECT_EQ(Written(), "");
}

TEST_F(DryRunTest, ADirectoryThatIsNotThereIsAnError) {
  Open();
  setenv("UNREFT_DRY_RUN", "/nowhere/at/all", 1);
  EXPECT_EQ(unreft_register(client_, &tensor_, 1, 0), UNREFT_NOT_FOUND);
  EXPECT_THAT(unreft_error(), HasSubstr("/nowhere/at/all/rank-1.json"));
}

}  // namespace
}  // namespace unreft::snapshot
