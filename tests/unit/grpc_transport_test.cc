// Who may talk to whom over gRPC, and what gRPC alone can get wrong.
#include "transport/grpc_transport.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <optional>

#include "tests/unit/grpc_transport_fixture.h"

namespace unreft {
namespace {

using testing::HasSubstr;

TEST_F(GrpcTransportTest, RefusesAnotherJob) {
  MakeServer("job-1");
  const absl::Status status = CallFrom("job-2");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("job-1"));
  EXPECT_THAT(status.ToString(), HasSubstr("job-2"));
  EXPECT_EQ(served_, 0);
}

TEST_F(GrpcTransportTest, WhoHasComeIsConnectedToAtOnce) {
  const auto at = [this](const std::string& listen) {
    const GrpcTransportOptions options{.job = "job-1",
                                       .listen = listen,
                                       .insecure = true,
                                       .reconnect_backoff_min = std::chrono::hours(1),
                                       .reconnect_backoff_max = std::chrono::hours(1)};
    std::unique_ptr<Transport> made;
    world_.InTurn([&] { made = *NewGrpcTransport(world_.asio(), options); });
    return made;
  };
  const auto serve = [this] {
    world_.InTurn([this] {
      server_->Serve("hello", [](std::string, Transport::CallDone done) { done("welcome"); });
    });
  };
  caller_ = at("127.0.0.1:0");
  server_ = at("127.0.0.1:0");
  const std::string address = server_->address();
  serve();
  ASSERT_TRUE(Call().ok());
  world_.InTurn([this] { caller_->ReconnectNow(server_->address()); });
  ASSERT_TRUE(Call().ok());  // nothing was wrong with it
  world_.InTurn([this] { server_.reset(); });
  const auto call = [&](absl::StatusCode expected) {
    std::optional<Reply> reply;
    world_.InTurn([&] {
      caller_->Call(address, "hello", "", std::chrono::seconds(20), [&](Reply r) { reply = r; });
    });
    EXPECT_TRUE(world_.RunUntil([&] { return reply.has_value(); }));
    EXPECT_EQ(reply->status().code(), expected) << reply->status();
  };
  call(absl::StatusCode::kUnavailable);  // perhaps lost with the connection that there was
  call(absl::StatusCode::kUnavailable);  // refused: the next attempt is an hour away
  server_ = at(address);
  serve();
  call(absl::StatusCode::kUnavailable);  // it has waited for a moment of its hour
  world_.InTurn([&] { caller_->ReconnectNow(address); });
  call(absl::StatusCode::kOk);
  world_.InTurn([&] { caller_->ReconnectNow("127.0.0.1:1"); });  // never heard of
}

TEST_F(GrpcTransportTest, AdmitsItsJobByCertificate) {
  MakeServer("job-1", certificates_.Make("job-1"));
  EXPECT_TRUE(CallFrom("job-1", certificates_.Make("job-1")).ok());
  EXPECT_EQ(served_, 1);
}

TEST_F(GrpcTransportTest, TheCallerRefusesTheCertificateOfAnotherJob) {
  MakeServer("job-2", certificates_.Make("job-2"));
  const absl::Status status = CallFrom("job-1", certificates_.Make("job-1"));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("unreft://job/job-1"));
  EXPECT_THAT(status.ToString(), HasSubstr("unreft://job/job-2"));
  EXPECT_EQ(served_, 0);
}

TEST_F(GrpcTransportTest, TheServerRefusesTheCertificateOfAnotherJob) {
  MakeServer("job-1", certificates_.Make("job-1"));
  const GrpcTlsOptions tls = certificates_.Make("job-2");
  const grpc::Status status = RawCall(
      grpc::SslCredentials({Text(tls.ca_file), Text(tls.key_file), Text(tls.cert_file)}), "job-1");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("unreft://job/job-1"));
  EXPECT_THAT(status.error_message(), HasSubstr("unreft://job/job-2"));
  EXPECT_EQ(served_, 0);
}

TEST_F(GrpcTransportTest, RefusesACallerWithoutACertificate) {
  MakeServer("job-1", certificates_.Make("job-1"));
  const GrpcTlsOptions tls = certificates_.Make("job-1");
  EXPECT_FALSE(RawCall(grpc::SslCredentials({Text(tls.ca_file), "", ""}), "job-1").ok());
  EXPECT_TRUE(
      RawCall(grpc::SslCredentials({Text(tls.ca_file), Text(tls.key_file), Text(tls.cert_file)}),
              "job-1")
          .ok());
  EXPECT_EQ(served_, 1);
}

TEST_F(GrpcTransportTest, RefusesAForeignAuthority) {
  MakeServer("job-1", certificates_.Make("job-1"));
  // It trusts another authority, so it is the caller who refuses.
  const GrpcTlsOptions foreign = certificates_.Make("job-1", "theirs");
  const absl::Status status = CallFrom("job-1", foreign);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  // And now the server.
  const std::string ours = Text(certificates_.Make("job-1").ca_file);
  EXPECT_FALSE(
      RawCall(grpc::SslCredentials({ours, Text(foreign.key_file), Text(foreign.cert_file)}),
              "job-1")
          .ok());
  EXPECT_EQ(served_, 0);
}

TEST_F(GrpcTransportTest, DoesNotMixPlaintextAndTls) {
  MakeServer("job-1", certificates_.Make("job-1"));
  EXPECT_FALSE(CallFrom("job-1").ok());
  server_.reset();
  MakeServer("job-1");
  const absl::Status status = CallFrom("job-1", certificates_.Make("job-1"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  EXPECT_EQ(served_, 0);
}

// What its peers would refuse, a node says of itself when it starts.
TEST_F(GrpcTransportTest, LooksAtItsFilesFirst) {
  const GrpcTlsOptions good = certificates_.Make("job-1");
  const GrpcTlsOptions theirs = certificates_.Make("job-1", "theirs");
  const GrpcTlsOptions other = certificates_.Make("job-2");
  const auto why = [&](const GrpcTlsOptions& tls) {
    absl::Status status;
    world_.InTurn(
        [&] { status = NewGrpcTransport(world_.asio(), {.job = "job-1", .tls = tls}).status(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  const auto with = [&](std::string GrpcTlsOptions::* file, const std::string& path) {
    GrpcTlsOptions tls = good;
    tls.*file = path;
    return tls;
  };
  using Tls = GrpcTlsOptions;
  EXPECT_THAT(why(with(&Tls::key_file, "/no/key")), HasSubstr("a key in '/no/key'"));
  EXPECT_THAT(why(with(&Tls::cert_file, "/no/cert")), HasSubstr("a certificate in '/no/cert'"));
  EXPECT_THAT(why(with(&Tls::ca_file, "/no/ca")), HasSubstr("a certificate in '/no/ca'"));
  EXPECT_THAT(why(with(&Tls::cert_file, good.key_file)), HasSubstr("a certificate in"));
  EXPECT_THAT(why(with(&Tls::key_file, other.key_file)),
              HasSubstr("'" + other.key_file + "' is not the key of"));
  EXPECT_THAT(why(with(&Tls::ca_file, theirs.ca_file)),
              HasSubstr("does not verify by the authorities of '" + theirs.ca_file));
  EXPECT_THAT(why(other), HasSubstr("is for [unreft://job/job-2], not for unreft://job/job-1"));
  GrpcTlsOptions restless = good;
  restless.reload = std::chrono::milliseconds(999);
  EXPECT_THAT(why(restless), HasSubstr("below 1 s"));
}

// An authority follows another while the server runs. Who knows only the old one goes on over the
// connection that he has, and gets no other.
TEST_F(GrpcTransportTest, TakesUpNewFilesAndKeepsOldConnections) {
  const GrpcTlsOptions ours = certificates_.Make("job-1");
  const GrpcTlsOptions next = certificates_.Make("job-1", "next");
  GrpcTlsOptions deployed = certificates_.Deploy("server", ours, {ours.ca_file});
  deployed.reload = std::chrono::seconds(1);
  MakeServer("job-1", deployed);
  EXPECT_TRUE(CallFrom("job-1", ours).ok());
  std::unique_ptr<Transport> old_caller = std::move(caller_);
  EXPECT_EQ(CallFrom("job-1", next).code(), absl::StatusCode::kUnauthenticated);

  certificates_.Deploy("server", next, {ours.ca_file, next.ca_file});
  bool taken_up = false;
  for (int i = 0; i < 1000 && !taken_up; ++i) {
    world_.InTurn([this] { caller_.reset(); });
    taken_up = CallFrom("job-1", next).ok();
    if (!taken_up) world_.asio().RunOneFor(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(taken_up);

  std::vector<Reply> replies;
  world_.InTurn([&] {
    old_caller->Call(server_->address(), "hello", "", std::chrono::seconds(20),
                     [&](Reply reply) { replies.push_back(std::move(reply)); });
  });
  ASSERT_TRUE(world_.RunUntil([&] { return !replies.empty(); }));
  EXPECT_TRUE(replies[0].ok()) << replies[0].status();
  world_.InTurn([this] { caller_.reset(); });
  EXPECT_EQ(CallFrom("job-1", ours).code(), absl::StatusCode::kUnauthenticated);
  world_.InTurn([&] { old_caller.reset(); });
}

// The same of the one who calls.
TEST_F(GrpcTransportTest, ShowsItsNewCertificate) {
  const GrpcTlsOptions ours = certificates_.Make("job-1");
  const GrpcTlsOptions next = certificates_.Make("job-1", "next");
  GrpcTlsOptions deployed = certificates_.Deploy("caller", ours, {ours.ca_file});
  deployed.reload = std::chrono::seconds(1);
  MakeServer("job-1", next);
  EXPECT_FALSE(CallFrom("job-1", deployed).ok());
  certificates_.Deploy("caller", next, {next.ca_file});
  bool reached = false;
  for (int i = 0; i < 1000 && !reached; ++i) {
    reached = Call().ok();
    if (!reached) world_.asio().RunOneFor(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(reached);
}

TEST_F(GrpcTransportTest, OwnsItsPortAlone) {
  MakeServer("job-1");
  world_.InTurn([&] {
    const auto second = NewGrpcTransport(
        world_.asio(), {.job = "job-1", .listen = server_->address(), .insecure = true});
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << second.status();
    EXPECT_THAT(second.status().ToString(), HasSubstr(server_->address()));
  });
}

TEST_F(GrpcTransportTest, AdvertisesAHost) {
  world_.InTurn([&] {
    const auto silent =
        NewGrpcTransport(world_.asio(), {.job = "j", .listen = "0.0.0.0:0", .insecure = true});
    EXPECT_EQ(silent.status().code(), absl::StatusCode::kInvalidArgument) << silent.status();
    auto named = NewGrpcTransport(
        world_.asio(),
        {.job = "j", .listen = "0.0.0.0:0", .advertise = "localhost", .insecure = true});
    ASSERT_TRUE(named.ok()) << named.status();
    EXPECT_TRUE((*named)->address().starts_with("localhost:")) << (*named)->address();
    EXPECT_FALSE((*named)->address().ends_with(":0")) << (*named)->address();
  });
}

// Each page of a read that is received into fresh memory costs a fault.
TEST_F(GrpcTransportTest, ReceivesIntoMemoryThatItKeeps) {
  if (!KeepReceiveMemory()) GTEST_SKIP() << "malloc is not glibc's";
  MakeServer("job-1");
  caller_ = New("job-1");
  const std::vector<std::byte> bytes(size_t{1} << 20, std::byte{7});
  std::vector<std::byte> into(bytes.size());
  world_.InTurn([&] {
    server_->ServeReads(
        [&](std::string, uint64_t, auto done) { done(ReadSource{.parts = {bytes}}); });
  });
  const auto faults_of_reads = [&](int count) {
    rusage before{};
    UNREFT_CHECK(getrusage(RUSAGE_SELF, &before) == 0);
    for (int i = 0; i < count; ++i) {
      std::vector<Reply> replies;
      world_.InTurn([&] {
        caller_->Read(server_->address(), "", into, std::chrono::seconds(20),
                      [&](Reply reply) { replies.push_back(std::move(reply)); });
      });
      EXPECT_TRUE(world_.RunUntil([&] { return !replies.empty(); }));
      EXPECT_TRUE(replies[0].ok()) << replies[0].status();
    }
    rusage after{};
    UNREFT_CHECK(getrusage(RUSAGE_SELF, &after) == 0);
    return after.ru_minflt - before.ru_minflt;
  };
  faults_of_reads(64);  // whichever threads gRPC uses
  EXPECT_EQ(into, bytes);
  constexpr int kReads = 256;
  const long pages = kReads * static_cast<long>(bytes.size()) / sysconf(_SC_PAGESIZE);
  EXPECT_LT(faults_of_reads(kReads), pages / 16);
}

TEST_F(GrpcTransportTest, RefusesRequestsOverTheParkingLimit) {
  world_.InTurn([&] {
    server_ =
        *NewGrpcTransport(world_.asio(), {.job = "job-1", .insecure = true, .calls_parked_max = 2});
  });
  std::vector<Transport::CallDone> parked;
  std::vector<Reply> replies;
  caller_ = New("job-1");
  world_.InTurn([&] {
    server_->Serve(
        "park", [&](std::string, Transport::CallDone done) { parked.push_back(std::move(done)); });
    for (int i = 0; i < 3; ++i) {
      caller_->Call(server_->address(), "park", "", std::chrono::seconds(20),
                    [&](Reply reply) { replies.push_back(std::move(reply)); });
    }
  });
  ASSERT_TRUE(world_.RunUntil([&] { return replies.size() == 1 && parked.size() == 2; }));
  EXPECT_EQ(replies[0].status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(replies[0].status().ToString(), HasSubstr("calls_parked_max is 2"));
  world_.InTurn([&] {
    for (auto& done : parked) done("now");
  });
  EXPECT_TRUE(world_.RunUntil([&] { return replies.size() == 3; }));
}

// A stream that has begun and says nothing.
class SilentStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  using OnEnd = std::function<void(const std::string& message)>;

  SilentStream(grpc::GenericStub& stub, const std::string& job, OnEnd on_end)
      : on_end_(std::move(on_end)) {
    context_.AddMetadata("unreft-job-bin", job);
    stub.PrepareBidiStreamingCall(&context_, "/unreft.Call/hello", {}, this);
    StartCall();
  }
  ~SilentStream() override {
    context_.TryCancel();
    ended_.get_future().wait();
  }
  void OnDone(const grpc::Status& status) override {
    on_end_(status.error_message());
    ended_.set_value();
  }

 private:
  const OnEnd on_end_;
  grpc::ClientContext context_;
  std::promise<void> ended_;
};

class SilentStreamsTest : public GrpcTransportTest {
 protected:
  static constexpr size_t kStreams = 32;

  ~SilentStreamsTest() override {
    streams_.clear();
    world_.InTurn([] {});  // behind what they have posted
  }

  void Start(size_t silent_max, Duration silent_timeout) {
    world_.InTurn([&] {
      server_ = *NewGrpcTransport(world_.asio(), {.job = "job-1",
                                                  .insecure = true,
                                                  .calls_parked_max = 2,
                                                  .calls_silent_max = silent_max,
                                                  .silent_timeout = silent_timeout});
      server_->Serve("hello", [](std::string, Transport::CallDone done) { done("welcome"); });
    });
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
    for (size_t i = 0; i < kStreams; ++i) {
      streams_.push_back(
          std::make_unique<SilentStream>(*stub_, "job-1", [this](const std::string& message) {
            world_.asio().Post([this, message] { ended_.push_back(message); });
          }));
    }
  }

  std::vector<std::string> ended_;  // their messages
  std::unique_ptr<grpc::GenericStub> stub_;
  std::vector<std::unique_ptr<SilentStream>> streams_;
};

// Each waited for ever in the place of a request.
TEST_F(SilentStreamsTest, TheyTakeNoPlaceFromOthersAndTheOldestEnd) {
  Start(8, std::chrono::hours(1));
  ASSERT_TRUE(world_.RunUntil([&] { return ended_.size() == kStreams - 8; }));
  EXPECT_THAT(ended_, testing::Each(HasSubstr("calls_silent_max is 8")));
  EXPECT_TRUE(CallFrom("job-1").ok());
}

TEST_F(SilentStreamsTest, TheyEndWhenNoMessageComes) {
  Start(1024, std::chrono::milliseconds(200));
  ASSERT_TRUE(world_.RunUntil([&] { return ended_.size() == kStreams; }));
  EXPECT_THAT(ended_, testing::Each(HasSubstr("no message came within 200 ms")));
  EXPECT_TRUE(CallFrom("job-1").ok());
}

TEST_F(GrpcTransportTest, DropsIdleChannelsOverTheLimit) {
  world_.InTurn([&] {
    caller_ =
        *NewGrpcTransport(world_.asio(), {.job = "job-1", .insecure = true, .channels_max = 1});
  });
  for (int i = 0; i < 3; ++i) {
    world_.InTurn([&] { server_.reset(); });
    MakeServer("job-1");
    EXPECT_TRUE(Call().ok());
  }
  std::vector<Reply> replies;
  world_.InTurn([&] {
    server_->Serve("park", [](std::string, Transport::CallDone) {});
    for (const char* address : {server_->address().c_str(), "127.0.0.1:1"}) {
      caller_->Call(address, "park", "", std::chrono::milliseconds(100),
                    [&](Reply reply) { replies.push_back(std::move(reply)); });
    }
  });
  ASSERT_TRUE(world_.RunUntil([&] { return replies.size() == 2; }));
  EXPECT_THAT(replies[0].status().ToString(), HasSubstr("channels_max is 1"));
}

TEST_F(GrpcTransportTest, ReachesANodeThatComesBack) {
  MakeServer("job-1");
  caller_ = New("job-1");
  EXPECT_TRUE(Call().ok());
  const std::string address = server_->address();
  world_.InTurn([&] { server_.reset(); });
  std::vector<Reply> replies;
  world_.InTurn([&] {
    caller_->Call(address, "hello", "", std::chrono::seconds(20),
                  [&](Reply reply) { replies.push_back(std::move(reply)); });
  });
  ASSERT_TRUE(world_.RunUntil([&] { return !replies.empty(); }));
  EXPECT_EQ(replies[0].status().code(), absl::StatusCode::kUnavailable) << replies[0].status();
  world_.InTurn([&] {
    server_ =
        *NewGrpcTransport(world_.asio(), {.job = "job-1", .listen = address, .insecure = true});
    server_->Serve("hello", [](std::string, Transport::CallDone done) { done("again"); });
  });
  EXPECT_TRUE(ReachesAgain());
}

}  // namespace
}  // namespace unreft
