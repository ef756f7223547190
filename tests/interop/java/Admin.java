// Apache Pulsar's command line pulsar-admin: runs many commands in one process.
//
// Arguments: service URL, admin URL.  Each line of the input is a command, its words separated by
// tabs.  For each command the output has what the command wrote, and then a line "<<ok>>" or
// "<<failed>>".

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

public final class Admin extends PulsarAdminTool {
  private Admin(Properties properties) throws Exception {
    super(properties);
  }

  public static void main(String[] args) throws Exception {
    PrintStream out = System.out;
    Properties properties = new Properties();
    properties.put("webServiceUrl", args[1]);
    properties.put("brokerServiceUrl", args[0]);
    Admin admin = new Admin(properties);
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    String line;
    while ((line = lines.readLine()) != null) {
      ByteArrayOutputStream written = new ByteArrayOutputStream();
      PrintStream captured = new PrintStream(written, true);
      System.setOut(captured);
      System.setErr(captured);
      boolean ok = false;
      try {
        ok = admin.run(line.split("\t"));
      } catch (Throwable error) {
        captured.println(error);
      }
      out.println(written.toString().strip());
      out.println(ok ? "<<ok>>" : "<<failed>>");
      out.flush();
    }
    System.exit(0); // The clients of the commands leave threads behind.
  }
}
