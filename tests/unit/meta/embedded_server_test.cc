// What one client may hold of the embedded store, and that others are served all the same.
#include "meta/embedded_server.h"

#include <etcd/rpc.grpc.pb.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/client_callback.h>

#include <fstream>
#include <functional>
#include <future>
#include <iterator>

#include "tests/unit/connection_flood.h"
#include "tests/unit/meta/tls_store_fixture.h"

namespace unreft::meta {
namespace {

namespace pb = etcdserverpb;

using ::testing::Each;
using ::testing::HasSubstr;

// A stream that says what it is given, and then nothing more.
template <typename Request, typename Response>
class Stream final : public grpc::ClientBidiReactor<Request, Response> {
 public:
  using OnResponse = std::function<void(const Response&)>;
  using OnEnd = std::function<void(const grpc::Status&)>;

  Stream(std::vector<Request> requests, OnResponse on_response, OnEnd on_end)
      : requests_(std::move(requests)),
        on_response_(std::move(on_response)),
        on_end_(std::move(on_end)) {}
  ~Stream() override {
    context_.TryCancel();
    ended_.get_future().wait();
  }

  grpc::ClientContext* context() { return &context_; }
  // After it was given to a stub.
  void Start() {
    this->StartRead(&response_);
    WriteNext();
    this->StartCall();
  }

 private:
  void WriteNext() {
    if (written_ < requests_.size()) this->StartWrite(&requests_[written_++]);
  }
  void OnWriteDone(bool ok) override {
    if (ok) WriteNext();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    on_response_(response_);
    this->StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    on_end_(status);
    ended_.set_value();
  }

  std::vector<Request> requests_;
  size_t written_ = 0;
  const OnResponse on_response_;
  const OnEnd on_end_;
  Response response_;
  grpc::ClientContext context_;
  std::promise<void> ended_;
};

using RawWatch = Stream<pb::WatchRequest, pb::WatchResponse>;
using RawKeepAlive = Stream<pb::LeaseKeepAliveRequest, pb::LeaseKeepAliveResponse>;

std::string Text(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

class EmbeddedServerTest : public TlsStoreTest {
 protected:
  ~EmbeddedServerTest() override {
    watches_.clear();
    keep_alives_.clear();
    world_.InTurn([] {});  // behind what they have posted
  }

  // The greedy client is of job "b", the other one of job "a".
  void Start(EmbeddedServerOptions options) {
    StartServer(std::move(options));
    const MetaTlsOptions files = FilesOf("b");
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("node");
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    greedy_ = grpc::CreateCustomChannel(
        server_->address(),
        grpc::SslCredentials({Text(files.ca), Text(files.key), Text(files.cert)}), arguments);
    watch_stub_ = pb::Watch::NewStub(greedy_);
    lease_stub_ = pb::Lease::NewStub(greedy_);
    ConnectAs("a");
  }

  void OpenWatch(std::vector<pb::WatchRequest> requests) {
    const auto on_response = [this](const pb::WatchResponse& response) {
      world_.asio().Post([this, response] {
        if (response.created()) ++created_;
        if (response.canceled()) canceled_.push_back(response.cancel_reason());
      });
    };
    watches_.push_back(std::make_unique<RawWatch>(std::move(requests), on_response, OnEnd()));
    watch_stub_->async()->Watch(watches_.back()->context(), watches_.back().get());
    watches_.back()->Start();
  }
  void OpenKeepAlive() {
    keep_alives_.push_back(std::make_unique<RawKeepAlive>(
        std::vector<pb::LeaseKeepAliveRequest>(), [](const auto&) {}, OnEnd()));
    lease_stub_->async()->LeaseKeepAlive(keep_alives_.back()->context(), keep_alives_.back().get());
    keep_alives_.back()->Start();
  }
  static pb::WatchRequest Create() {
    pb::WatchRequest request;
    request.mutable_create_request()->set_key("unreft/b/x");
    return request;
  }
  // Whether a client of the other job can change the store and hear of it.
  bool IsServed() {
    if (!Put("unreft/a/commit").ok()) return false;
    Watch("unreft/a/commit");
    return world_.RunUntil([&] { return !heard_.empty(); });
  }

  std::vector<std::string> ended_;  // their messages
  int created_ = 0;
  std::vector<std::string> canceled_;  // why

 private:
  std::function<void(const grpc::Status&)> OnEnd() {
    return [this](const grpc::Status& status) {
      world_.asio().Post([this, message = status.error_message()] { ended_.push_back(message); });
    };
  }

  std::shared_ptr<grpc::Channel> greedy_;
  std::unique_ptr<pb::Watch::Stub> watch_stub_;
  std::unique_ptr<pb::Lease::Stub> lease_stub_;
  std::vector<std::unique_ptr<RawWatch>> watches_;
  std::vector<std::unique_ptr<RawKeepAlive>> keep_alives_;
};

// Each waited for ever in the place of a stream.
TEST_F(EmbeddedServerTest, AStreamThatSaysNothingEnds) {
  Start({.streams_max = 2, .silent_timeout = std::chrono::milliseconds(200)});
  for (int i = 0; i < 4; ++i) {
    OpenWatch({});
    OpenKeepAlive();
  }
  EXPECT_TRUE(IsServed());
  ASSERT_TRUE(world_.RunUntil([&] { return ended_.size() == 8; }));
  EXPECT_THAT(ended_, Each(HasSubstr("no message came within 200 ms")));
}

TEST_F(EmbeddedServerTest, OfManySilentStreamsTheOldestEnd) {
  Start({.streams_max = 2, .calls_silent_max = 4, .silent_timeout = std::chrono::hours(1)});
  for (int i = 0; i < 8; ++i) {
    OpenWatch({});
    OpenKeepAlive();
  }
  ASSERT_TRUE(world_.RunUntil([&] { return ended_.size() == 12; }));
  EXPECT_THAT(ended_, Each(HasSubstr("calls_silent_max is 4")));
  EXPECT_TRUE(IsServed());
}

TEST_F(EmbeddedServerTest, StreamsOfOneClientShutOutNoOther) {
  Start({.streams_max = 4});
  for (int i = 0; i < 6; ++i) OpenWatch({Create()});
  ASSERT_TRUE(world_.RunUntil([&] { return created_ == 4 && ended_.size() == 2; }));
  EXPECT_THAT(ended_, Each(HasSubstr("4 of them by this peer, streams_max is 4")));
  EXPECT_TRUE(IsServed());
  ASSERT_TRUE(world_.RunUntil([&] { return ended_.size() == 3; }));
  EXPECT_THAT(ended_.back(), HasSubstr("this peer holds the most places"));
}

TEST_F(EmbeddedServerTest, WatchesOfOneClientShutOutNoOther) {
  Start({.watches_max = 4});
  OpenWatch(std::vector<pb::WatchRequest>(6, Create()));
  ASSERT_TRUE(world_.RunUntil([&] { return created_ == 6 && canceled_.size() == 2; }));
  EXPECT_THAT(canceled_, Each(HasSubstr("4 of them by this peer, watches_max is 4")));
  EXPECT_TRUE(IsServed());
  ASSERT_TRUE(world_.RunUntil([&] { return canceled_.size() == 3; }));
  EXPECT_THAT(canceled_.back(), HasSubstr("this peer holds the most places"));
}

TEST_F(EmbeddedServerTest, AcceptsAgainAfterConnectionsTookAllDescriptors) {
  Start({});
  FloodWithConnections(server_->address());
  ConnectAs("a");
  EXPECT_TRUE(IsServed());
}

}  // namespace
}  // namespace unreft::meta
