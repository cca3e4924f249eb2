// Transport by socket files: who is let in, and in whose place one may listen.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "tests/unit/grpc_transport_fixture.h"

namespace unreft {
namespace {

using testing::HasSubstr;

class UnixTransportTest : public GrpcTransportTest {
 protected:
  UnixTransportTest() { UNREFT_CHECK(mkdtemp(directory_.data()) != nullptr); }
  ~UnixTransportTest() override { std::filesystem::remove_all(directory_); }

  std::string Address(const std::string& name) const { return "unix:" + directory_ + "/" + name; }
  absl::StatusOr<std::unique_ptr<Transport>> NewAt(const std::string& address) {
    absl::StatusOr<std::unique_ptr<Transport>> made = absl::UnknownError("not made");
    world_.InTurn(
        [&] { made = NewGrpcTransport(world_.asio(), {.job = "job-1", .listen = address}); });
    return made;
  }
  void Serve() {
    world_.InTurn([this] {
      server_->Serve("hello", [](std::string, Transport::CallDone done) { done("welcome"); });
    });
  }

  std::string directory_ = testing::TempDir() + "unreft_peers_XXXXXX";
};

TEST_F(UnixTransportTest, TcpWithoutCertificatesIsRefusedBothWays) {
  const absl::Status listens = NewAt("127.0.0.1:0").status();
  EXPECT_TRUE(absl::IsPermissionDenied(listens)) << listens;
  EXPECT_THAT(listens.ToString(), HasSubstr("transport_listen: '127.0.0.1:0' is TCP without TLS"));
  MakeServer("job-1");
  caller_ = *NewAt(Address("a.sock"));
  const absl::Status connects = Call().status();
  EXPECT_TRUE(absl::IsPermissionDenied(connects)) << connects;
  EXPECT_THAT(connects.ToString(), HasSubstr(server_->address() + "' is TCP without TLS"));
  EXPECT_EQ(served_, 0);
}

TEST_F(UnixTransportTest, HasNoHostToAdvertise) {
  world_.InTurn([&] {
    const auto named = NewGrpcTransport(
        world_.asio(), {.job = "j", .listen = Address("a.sock"), .advertise = "localhost"});
    EXPECT_TRUE(absl::IsInvalidArgument(named.status())) << named.status();
  });
}

// What is said to a peer is said to nobody who has taken its place.
TEST_F(UnixTransportTest, LooksWhoseDirectoryItIsBeforeEachCall) {
  server_ = *NewAt(Address("place/a.sock"));
  Serve();
  caller_ = *NewAt(Address("b.sock"));
  EXPECT_TRUE(Call().ok());
  ASSERT_EQ(chmod((directory_ + "/place").c_str(), 0777), 0);
  const absl::Status another = Call().status();
  EXPECT_TRUE(absl::IsPermissionDenied(another)) << another;
  EXPECT_THAT(another.ToString(), HasSubstr(directory_ + "/place belongs to"));
  ASSERT_EQ(chmod((directory_ + "/place").c_str(), 0700), 0);
  EXPECT_TRUE(Call().ok());
  std::filesystem::remove_all(directory_ + "/place");
  EXPECT_TRUE(absl::IsUnavailable(Call().status()));
}

// As a process that is killed does, it leaves its file.
TEST_F(UnixTransportTest, TakesThePlaceOfAKilledOneButOfNoLivingOne) {
  const std::string address = Address("a.sock");
  server_ = *NewAt(address);
  Serve();
  caller_ = *NewAt(Address("b.sock"));
  EXPECT_TRUE(absl::IsAlreadyExists(NewAt(address).status()));
  EXPECT_TRUE(Call().ok()) << "the living one has kept its file";
  std::filesystem::create_hard_link(directory_ + "/a.sock", directory_ + "/left");
  world_.InTurn([this] { server_.reset(); });
  std::filesystem::rename(directory_ + "/left", directory_ + "/a.sock");
  auto second = NewAt(address);
  ASSERT_TRUE(second.ok()) << second.status();
  server_ = *std::move(second);
  Serve();
  EXPECT_TRUE(ReachesAgain());
}

}  // namespace
}  // namespace unreft
