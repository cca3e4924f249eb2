// Certificates that are replaced while they are in use, by good ones and by bad ones, and peers
// that are refused by theirs.
#include "transport/tls_certificates.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/fakes/capture_log_sink.h"
#include "tests/unit/grpc_transport_fixture.h"

namespace unreft {
namespace {

using testing::HasSubstr;
using Validity = CertificateKind::Validity;

class TlsCertificatesTest : public GrpcTransportTest {
 protected:
  // In use and looked at only when the test says so.
  std::shared_ptr<TlsCertificates> Use(GrpcTlsOptions files,
                                       Duration reload = std::chrono::hours(1)) {
    files.reload = reload;
    auto made = NewNodeCertificates("job-1", files, world_.asio(), &log_);
    UNREFT_CHECK(made.ok(), "{}", made.status().ToString());
    return *std::move(made);
  }
  absl::Status Reload(TlsCertificates& certificates) {
    absl::Status status;
    world_.InTurn([&] { status = certificates.Reload(); });
    return status;
  }
  std::unique_ptr<Transport> NewWith(const std::shared_ptr<TlsCertificates>& certificates) {
    std::unique_ptr<Transport> transport;
    world_.InTurn([&] {
      GrpcTransportOptions options{.job = "job-1"};
      options.tls.enabled = true;
      auto made = NewGrpcTransport(world_.asio(), options, certificates);
      UNREFT_CHECK(made.ok(), "{}", made.status().ToString());
      transport = *std::move(made);
    });
    return transport;
  }

  CaptureLogSink sink_;
  Log log_{sink_};
};

struct BadFiles {
  std::string what;
  std::string message;
  GrpcTlsOptions files;
  mode_t key_mode = 0600;
};

// What a start refuses, a running daemon refuses, too, and goes on with what it has.
TEST_F(TlsCertificatesTest, BadFilesAreAnErrorAndTheOldOnesStayInUse) {
  const GrpcTlsOptions good = certificates_.Make("job-1");
  const GrpcTlsOptions other_key = certificates_.Make("job-1", "ours", {.names = "DNS:other"});
  GrpcTlsOptions mismatched = good;
  mismatched.key_file = other_key.key_file;
  const std::vector<BadFiles> all = {
      {"expired", "expired since 2020-01-02 00:00:00 UTC",
       certificates_.Make("job-1", "ours", {.validity = Validity::kOver})},
      {"not yet valid", "not valid before 2140-01-01 00:00:00 UTC",
       certificates_.Make("job-1", "ours", {.validity = Validity::kNotYet})},
      {"of a foreign authority", "it was signed by CN=theirs",
       certificates_.Make("job-1", "theirs")},
      {"of another job", "is for [unreft://job/job-2], not for unreft://job/job-1",
       certificates_.Make("job-2")},
      {"with another's key", "is not the key of the certificate", mismatched},
      {"with a key that others can read", "with mode 0644", other_key, 0644},
  };
  for (const BadFiles& bad : all) {
    SCOPED_TRACE(bad.what);
    const GrpcTlsOptions deployed = certificates_.Deploy("node", good, {good.ca_file});
    const auto certificates = Use(deployed);
    const std::string serial = certificates->current()->serial();
    EXPECT_EQ(Reload(*certificates), absl::OkStatus());
    certificates_.Deploy("node", bad.files, {good.ca_file});
    ASSERT_EQ(chmod(deployed.key_file.c_str(), bad.key_mode), 0);
    const absl::Status refused = Reload(*certificates);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(bad.message));
    EXPECT_TRUE(certificates->state().files_are_bad);
    EXPECT_EQ(certificates->current()->serial(), serial);
    EXPECT_EQ(Reload(*certificates), refused);
    EXPECT_EQ(sink_.Count(bad.message), 1u) << "said once";
    EXPECT_THAT(sink_.lines().back(), testing::StartsWith("error: transport_tls: "));
    EXPECT_THAT(sink_.lines().back(), HasSubstr("serial " + serial + " stays in use"));

    certificates_.Deploy("node", other_key, {good.ca_file});
    EXPECT_EQ(Reload(*certificates), absl::OkStatus());
    EXPECT_FALSE(certificates->state().files_are_bad);
    const auto next = certificates->current();
    EXPECT_NE(next->serial(), serial);
    EXPECT_THAT(sink_.lines().back(),
                HasSubstr("with the serial " + next->serial() + " is in use, valid until " +
                          tls_files::TimeText(next->expires_s())));
  }
}

// Without anybody's asking; and connections made meanwhile are made with what is good.
TEST_F(TlsCertificatesTest, LooksAtItsFilesByItself) {
  const GrpcTlsOptions good = certificates_.Make("job-1");
  const GrpcTlsOptions deployed = certificates_.Deploy("server", good, {good.ca_file});
  const auto certificates = Use(deployed, std::chrono::seconds(1));
  server_ = NewWith(certificates);
  world_.InTurn([this] {
    server_->Serve("hello", [](std::string, Transport::CallDone done) { done("welcome"); });
  });
  certificates_.Deploy("server", certificates_.Make("job-1", "ours", {.validity = Validity::kOver}),
                       {good.ca_file});
  EXPECT_TRUE(world_.RunUntil([&] { return sink_.Count("error: ") > 0; }));
  EXPECT_EQ(CallFrom("job-1", good), absl::OkStatus());
  const size_t used = sink_.Count("is in use");
  certificates_.Deploy("server", certificates_.Make("job-1", "ours", {.names = "DNS:b"}),
                       {good.ca_file});
  EXPECT_TRUE(world_.RunUntil([&] { return sink_.Count("is in use") > used; }));
  world_.InTurn([this] { caller_.reset(); });
  EXPECT_EQ(CallFrom("job-1", good), absl::OkStatus());
}

// Files are replaced one after the other: what one look finds in between is not told.
TEST_F(TlsCertificatesTest, IsNotAlarmedWhileFilesAreBeingReplaced) {
  const GrpcTlsOptions good = certificates_.Make("job-1");
  const GrpcTlsOptions next = certificates_.Make("job-1", "ours", {.names = "DNS:next"});
  GrpcTlsOptions half = good;
  half.key_file = next.key_file;
  SimWorld sim(1);
  GrpcTlsOptions deployed = certificates_.Deploy("node", good, {good.ca_file});
  deployed.reload = std::chrono::seconds(10);
  const auto made = NewNodeCertificates("job-1", deployed, sim.executor(0), &log_);
  ASSERT_TRUE(made.ok()) << made.status();
  sim.Settle();

  certificates_.Deploy("node", half, {good.ca_file});
  sim.scheduler().RunFor(std::chrono::seconds(11));
  certificates_.Deploy("node", next, {good.ca_file});
  sim.scheduler().RunFor(std::chrono::seconds(11));
  EXPECT_EQ(sink_.Count("is in use"), 2u);
  EXPECT_EQ(sink_.Count("error: "), 0u);
  certificates_.Deploy("node", half, {good.ca_file});
  sim.scheduler().RunFor(std::chrono::seconds(11));
  EXPECT_EQ(sink_.Count("error: "), 0u);
  sim.scheduler().RunFor(std::chrono::seconds(40));
  EXPECT_EQ(sink_.Count("error: "), 1u) << "it stayed so";
}

TEST_F(TlsCertificatesTest, TheServerNamesTheCallerThatItRefuses) {
  const GrpcTlsOptions ours = certificates_.Make("job-1");
  server_ = NewWith(Use(ours));
  const GrpcTlsOptions over = certificates_.Make("job-1", "ours", {.validity = Validity::kOver});
  EXPECT_FALSE(
      RawCall(grpc::SslCredentials({Text(ours.ca_file), Text(over.key_file), Text(over.cert_file)}),
              "job-1")
          .ok());
  EXPECT_TRUE(
      world_.RunUntil([&] { return sink_.Count("expired since 2020-01-02 00:00:00 UTC") == 1; }));
  EXPECT_THAT(sink_.lines().back(),
              testing::StartsWith("warn: refused: transport_tls: a caller: the certificate of "
                                  "CN=node, serial "));
}

TEST_F(TlsCertificatesTest, TheServerNamesAForeignAuthorityAndAnotherJob) {
  const GrpcTlsOptions ours = certificates_.Make("job-1");
  server_ = NewWith(Use(ours));
  const std::string ca = Text(ours.ca_file);
  const GrpcTlsOptions foreign = certificates_.Make("job-1", "theirs");
  EXPECT_FALSE(
      RawCall(grpc::SslCredentials({ca, Text(foreign.key_file), Text(foreign.cert_file)}), "job-1")
          .ok());
  EXPECT_TRUE(world_.RunUntil([&] { return sink_.Count("it was signed by CN=theirs") == 1; }));
  EXPECT_EQ(sink_.Count("the certificate of CN=node, serial "), 1u);
}

TEST_F(TlsCertificatesTest, TheServerNamesACallerOfAnotherJob) {
  const GrpcTlsOptions ours = certificates_.Make("job-1");
  server_ = NewWith(Use(ours));
  const GrpcTlsOptions other = certificates_.Make("job-2");
  EXPECT_FALSE(RawCall(grpc::SslCredentials(
                           {Text(ours.ca_file), Text(other.key_file), Text(other.cert_file)}),
                       "job-1")
                   .ok());
  EXPECT_TRUE(world_.RunUntil([&] { return sink_.Count("not for unreft://job/job-1") == 1; }));
  EXPECT_EQ(sink_.Count("that of CN=node"), 1u);
}

// The caller has it in the status of the call, which RefusalLog logs.
TEST_F(TlsCertificatesTest, TheCallerNamesTheServerThatItRefuses) {
  const auto ours = Use(certificates_.Make("job-1"));
  server_ = NewWith(Use(certificates_.Make("job-1", "theirs")));
  caller_ = NewWith(ours);
  const absl::Status status = Call().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the certificate of CN=node, serial "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("it was signed by CN=theirs"));
  const absl::Status over = ours->current()->CheckPeer(
      TlsUse::kListens,
      Text(certificates_.Make("job-1", "ours", {.validity = Validity::kOver}).cert_file), "");
  EXPECT_THAT(std::string(over.message()), HasSubstr("expired since 2020-01-02 00:00:00 UTC"));
}

}  // namespace
}  // namespace unreft
